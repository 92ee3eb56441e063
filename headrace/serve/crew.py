"""Those who make the micro-batches of this rank: worker processes, or this process itself."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.util import Finalize

from headrace.serve.pipeline import Pipeline
from headrace.serve.worker import Job, Made, Maker, Worker, end_all


class Crew:
    def __init__(self, pipeline: Pipeline, num_workers: int, ahead: int, start_method: str | None) -> None:
        self.pipeline = pipeline
        self._workers: list[Worker] = []
        self._maker: Maker | None = None
        self._job: Job | None = None
        # Also where nobody closes: at exit before multiprocessing ends its children, and never in a forked copy of us.
        self._end_workers = Finalize(self, end_all, (self._workers,), exitpriority=10)
        try:
            for number in range(num_workers):
                self._workers.append(Worker(pipeline, number, ahead, start_method))
        except BaseException:
            self.close()
            raise

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    def begin(self, job: Job) -> None:
        """What is under way from before is stale from now on."""
        self._job = job
        self._forget()
        if not self._workers:
            self._maker = Maker(self.pipeline, job)
        period = job.lanes // job.ranks
        for worker in self._workers:
            turns = range(worker.number, period, self.num_workers)
            own = {(job.m + turn * job.ranks) % job.lanes for turn in turns}
            states = {lane: state for lane, state in job.states.items() if lane in own}
            worker.begin(replace(job, states=states, worker=worker.number, workers=self.num_workers))

    def take(self, m: int) -> Made:
        assert self._job is not None, "a crew begins a job first"
        if self._maker is not None:
            made = self._maker.make()
            assert made is not None, "a lane that is over is not asked"
        else:
            turn = (m - self._job.m) // self._job.ranks % (self._job.lanes // self._job.ranks)
            made = self._workers[turn % self.num_workers].take(m, self.pipeline.run.worker_seconds)
        assert made.batch.m == m, f"micro-batch {made.batch.m} came for {m}"
        return made

    def rest(self) -> None:
        """The job is done; workers wait for the next one."""
        self._forget()

    def close(self) -> None:
        self._forget()
        self._end_workers()

    def _forget(self) -> None:
        if self._maker is not None:
            self._maker.close()
            self._maker = None
