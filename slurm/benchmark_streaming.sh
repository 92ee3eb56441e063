#!/bin/bash
# Measures streaming on as many nodes as the job has; arguments are those of the benchmark:
#
#   sbatch --nodes=2 slurm/benchmark_streaming.sh org/name --mode sarm
#   sbatch --nodes=1 slurm/benchmark_streaming.sh --root /scratch/robocasa --num-workers 16
#
# Environment, with defaults:
#   OUT             where the JSON and the CSV go
#   CACHE           what is fetched; on a disk of each node. Empty it before a run that is to be cold
#   RANKS_PER_NODE  processes of a node: its GPUs, or 1
#   PYTHON          the interpreter of an environment with headrace, torch and av

#SBATCH --job-name=benchmark-streaming
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

set -euo pipefail

OUT=${OUT:-$PWD/outputs/benchmark_streaming}
CACHE=${CACHE:-/tmp/headrace-$USER}
RANKS_PER_NODE=${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
PYTHON=${PYTHON:-python}
HERE=${SLURM_SUBMIT_DIR:-$PWD}

NODES=${SLURM_NNODES:-1}
MASTER=$(scontrol show hostnames "${SLURM_JOB_NODELIST:?start this with sbatch}" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 20000))
export OMP_NUM_THREADS=1

srun --ntasks="$NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \
  "$PYTHON" -m torch.distributed.run \
  --nnodes="$NODES" --nproc-per-node="$RANKS_PER_NODE" \
  --rdzv-backend=c10d --rdzv-endpoint="$MASTER:$PORT" --rdzv-id="$SLURM_JOB_ID" \
  "$HERE/benchmarks/streaming/benchmark_streaming.py" --out "$OUT" --cache-dir "$CACHE" "$@"
