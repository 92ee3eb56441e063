#!/bin/bash
# Trains the example policy on streamed robot episodes, on as many nodes as the job has:
#
#   DATASET=owner/robocasa sbatch --nodes=2 slurm/train_streaming_robocasa.sh
#   DATASET=owner/robocasa sbatch --nodes=2 slurm/train_streaming_robocasa.sh --steps 10000   # options of the example
#   DATASET=owner/robocasa sbatch --nodes=2 slurm/train_streaming_robocasa.sh --dummy         # data loading alone
#
# Submit it again to go on: it always resumes from the last checkpoint in OUT, also after a requeue. Ranks, workers and
# the batch size must stay what they were.
#
# Environment; one of the first two is needed, the others have defaults:
#   DATASET         a LeRobot v3 data set on the Hub, such as a copy of RoboCasa
#   ROOT            the folder or URL (hf://buckets/owner/name, s3://...) that it lies in, instead of the Hub
#   OUT             checkpoints and log; on a disk that all nodes see
#   CACHE           what is fetched; on a disk of each node
#   RANKS_PER_NODE  processes of a node: its GPUs, or 1
#   WORKERS         loader workers of each rank; RANKS_PER_NODE * (WORKERS + 1) should not exceed the cores of a node
#   PYTHON          the interpreter of an environment with headrace, torch, accelerate and av
#   HF_TOKEN        for private data sets; HF_SHARD_CACHE_CLEANUP=keep to keep what was fetched

#SBATCH --job-name=train-streaming
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.out

set -euo pipefail

DATASET=${DATASET:-}
ROOT=${ROOT:-}
[ -n "$DATASET$ROOT" ] || { echo "set DATASET to a repo on the Hub, or ROOT to a folder or URL" >&2; exit 2; }
OUT=${OUT:-$PWD/outputs/train_streaming_robocasa}
CACHE=${CACHE:-/tmp/headrace-$USER}
RANKS_PER_NODE=${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
WORKERS=${WORKERS:-4}
PYTHON=${PYTHON:-python}
HERE=${SLURM_SUBMIT_DIR:-$PWD}

NODES=${SLURM_NNODES:-1}
MASTER=$(scontrol show hostnames "${SLURM_JOB_NODELIST:?start this with sbatch}" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 20000))
export OMP_NUM_THREADS=1

# One torchrun on each node; it gives each of its ranks RANK and WORLD_SIZE, from which all else follows.
srun --ntasks="$NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \
  "$PYTHON" -m torch.distributed.run \
  --nnodes="$NODES" --nproc-per-node="$RANKS_PER_NODE" \
  --rdzv-backend=c10d --rdzv-endpoint="$MASTER:$PORT" --rdzv-id="$SLURM_JOB_ID" \
  "$HERE/examples/scaling/train_streaming_multinode.py" ${DATASET:+"$DATASET"} ${ROOT:+--root "$ROOT"} \
  --out "$OUT" --cache-dir "$CACHE" --workers "$WORKERS" --resume "$@"
