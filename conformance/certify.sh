#!/usr/bin/env bash
# Check that every backend of this repository meets the contract, one report each; stop at the first that does not.
#
#   conformance/certify.sh                          levels 0 to 4; reports go to docs/conformance/
#   conformance/certify.sh --level 2 --out DIR      the levels and the folder
#   conformance/certify.sh --sharded                the trainers of several ranks only: the rest are references of the self-test, which makes all their checks
#   TRAINERS=fsdp conformance/certify.sh --sharded  one of them
#   conformance/certify.sh --engine vllm            a served engine and its pairs, after `areal env create vllm`
#   conformance/certify.sh --npu                    the backend of NPUs and its pair, where there are some, or under `python -m areal_ascend.testing`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
LEVEL=4 ENGINE= NPU= SHARDED= OUT=docs/conformance/reports AREAL=${AREAL:-.venv/bin/areal}
while [ $# -gt 0 ]; do
  case "$1" in
    --npu) NPU=1; shift; continue ;;
    --sharded) SHARDED=1; shift; continue ;;
    --level) LEVEL=$2 ;;
    --out) OUT=$2 ;;
    --engine) ENGINE=$2 ;;
    *) echo "certify.sh: unknown option $1; options are --level N, --out DIR, --engine NAME, --sharded and --npu" >&2; exit 2 ;;
  esac
  shift 2
done
SEVERAL_RANKS=${TRAINERS:-fsdp archon megatron} RANKS=$((LEVEL > 2 ? 4 : 2))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

certify() {  # folder, then what `areal conformance run` takes
  local folder=$1
  shift
  "$AREAL" conformance run "$@" --level "$LEVEL" --report "$OUT/$folder"
}

if [ -n "$ENGINE" ]; then
  certify "infer-$ENGINE" --backend "$ENGINE" --role infer
  if [ "$LEVEL" -ge 3 ]; then
    for trainer in reference $SEVERAL_RANKS; do
      certify "pair-$trainer+$ENGINE" --pair "$trainer+$ENGINE"
    done
  fi
  exit
fi
if [ -n "$NPU" ]; then
  certify train-ascend --backend ascend --role train --device npu --ranks "$RANKS"
  if [ "$LEVEL" -ge 3 ]; then
    certify pair-ascend+reference --pair ascend+reference --device npu
  fi
  exit
fi
for trainer in $SEVERAL_RANKS; do
  certify "train-$trainer" --backend "$trainer" --role train --ranks "$RANKS"
done
if [ -n "$SHARDED" ]; then
  exit
fi
certify train-reference --backend reference --role train
certify infer-reference --backend reference --role infer
certify scheduler-local --backend local --role scheduler
if [[ $("$AREAL" backends ray 2>/dev/null) == *"here: ok"* ]]; then # on three raylets of this machine
  certify scheduler-ray --backend ray --role scheduler || [ $? = 3 ] # partial: one failure is known, and is Ray's
else
  echo "certify.sh: the scheduler ray is left out, since Ray is not installed" >&2
fi
certify transport-disk --backend disk --role transport
certify transport-shm --backend shm --role transport
certify transport-collective --backend collective --role transport
certify device-cpu --backend cpu --role device
for workflow in single_turn critique multi_turn tools self_play judge agent; do
  certify "workflow-$workflow" --backend "$workflow" --role workflow
done
certify endpoint-http --backend http --role endpoint
for renderer in auto plain template chatml qwen2.5 qwen3 llama3 deepseek glm4 harmony; do
  certify "renderer-$renderer" --backend "$renderer" --role renderer
done
if [ "$LEVEL" -ge 3 ]; then  # these have no checks below
  for trainer in reference $SEVERAL_RANKS; do
    certify "pair-$trainer+reference" --pair "$trainer+reference"
  done
fi
