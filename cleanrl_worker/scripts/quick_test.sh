#!/usr/bin/env bash
# @description: Two short phases on small environments, to see that scripts work here
# @env_family: minigrid
# @phases: 2
# @total_timesteps: 2048
#
# Each phase is one worker, started from the run's configuration with a few fields changed. The second one begins
# with the weights of the first.
set -euo pipefail

PHASE1_ENV="MiniGrid-Empty-5x5-v0"
PHASE2_ENV="MiniGrid-Empty-6x6-v0"

first="$MOSAIC_RUN_DIR/phases/1"
cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --run-dir "$first" --algo ppo --env-id "$PHASE1_ENV" \
    --total-timesteps 1024 --extras '{"algo_params": {"save_model": true}}'

model=$(ls "$first"/runs/*/ppo.cleanrl_model)
cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --run-dir "$MOSAIC_RUN_DIR/phases/2" --algo ppo --env-id "$PHASE2_ENV" \
    --total-timesteps 1024 \
    --extras "{\"mode\": \"resume_training\", \"checkpoint_path\": \"$model\", \"algo_params\": {\"save_model\": true}}"
