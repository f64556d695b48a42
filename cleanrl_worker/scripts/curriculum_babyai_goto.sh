#!/usr/bin/env bash
# @description: BabyAI's GoTo levels in four phases, each with the weights of the one before
# @env_family: babyai
# @phases: 4
# @total_timesteps: 800000
set -euo pipefail

PHASE1_ENV="BabyAI-GoToRedBallNoDists-v0"
PHASE2_ENV="BabyAI-GoToRedBall-v0"
PHASE3_ENV="BabyAI-GoToObj-v0"
PHASE4_ENV="BabyAI-GoToLocal-v0"
PARAMS='"num_envs": 16, "num_minibatches": 8, "learning_rate": 0.001, "save_model": true'

# phase <number> <environment> <steps>
phase() {
    local folder="$MOSAIC_RUN_DIR/phases/$1" resume=""
    if [ "$1" -gt 1 ]; then
        resume="\"mode\": \"resume_training\", \"checkpoint_path\": \"$(ls "$MOSAIC_RUN_DIR/phases/$(($1 - 1))"/runs/*/ppo.cleanrl_model)\", "
    fi
    cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --run-dir "$folder" --algo ppo --env-id "$2" --total-timesteps "$3" \
        --extras "{$resume\"algo_params\": {$PARAMS}}"
}

phase 1 "$PHASE1_ENV" 200000
phase 2 "$PHASE2_ENV" 200000
phase 3 "$PHASE3_ENV" 200000
phase 4 "$PHASE4_ENV" 200000
