#!/bin/sh
# A coding harness as an agent: mini-swe-agent does the task of a row in an empty folder, and the row's check says what
# that is worth. `pip install mini-swe-agent` brings it; a row has `prompt` and `check`, for example
# {"prompt": "Write 42 into answer.txt.", "check": "grep -qx 42 answer.txt"}.
#
#   rollout: {agent: {command: [sh, examples/agents/harness.sh, "{prompt}", "{check}"]}}
export MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=true
mini --model openai/policy --yolo --exit-immediately --task "$1" || exit 1
if sh -c "$2"; then echo 1 >"$AREAL_REWARD"; else echo 0 >"$AREAL_REWARD"; fi
