#!/usr/bin/env bash
# @description: DoorKey from 5x5 over 8x8 to 16x16, each phase with the weights of the one before
# @env_family: minigrid
# @phases: 3
# @total_timesteps: 600000
set -euo pipefail

PHASE1_ENV="MiniGrid-DoorKey-5x5-v0"
PHASE2_ENV="MiniGrid-DoorKey-8x8-v0"
PHASE3_ENV="MiniGrid-DoorKey-16x16-v0"
PARAMS='"num_envs": 16, "num_minibatches": 8, "learning_rate": 0.001, "max_episode_steps": 640, "save_model": true'

# phase <number> <environment> <steps>
phase() {
    local folder="$MOSAIC_RUN_DIR/phases/$1" resume=""
    if [ "$1" -gt 1 ]; then
        resume="\"mode\": \"resume_training\", \"checkpoint_path\": \"$(ls "$MOSAIC_RUN_DIR/phases/$(($1 - 1))"/runs/*/ppo.cleanrl_model)\", "
    fi
    cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --run-dir "$folder" --algo ppo --env-id "$2" --total-timesteps "$3" \
        --extras "{$resume\"algo_params\": {$PARAMS}}"
}

phase 1 "$PHASE1_ENV" 100000
phase 2 "$PHASE2_ENV" 200000
phase 3 "$PHASE3_ENV" 300000
