#!/usr/bin/env bash
# The paper's experiment on a local copy of the distribution. Run it again to go on where it stopped.
#   run.sh ARCHIVES [WORK] [FAMILY]       FAMILY: transformer (default), lstm or fconv
here=$(cd "$(dirname "$0")" && pwd)
exec bash "$here/../steps/paper_experiment.sh" "$here" fi en 40000 wmt "$@"
