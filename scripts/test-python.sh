#!/usr/bin/env bash
# Builds the Python package as a wheel, installs it into build/, and runs its tests.
#
#   scripts/test-python.sh [ARGUMENTS OF PYTEST]
#
# PYTHON names another interpreter with pytest, such as one with PyTorch and CuPy on a machine with a GPU; by
# default it is that of scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/build/python-tools/bin/python
python=${PYTHON:-$tools}
wheels=build/python-wheels
package=build/python-package

rm -rf "$wheels" "$package"
# The profile of the other tests, whose dependencies are built already.
"$tools" -m maturin build --quiet --profile dev --compatibility linux --interpreter "$python" --out "$wheels"
# A wheel is an archive of what is installed: a folder on the path is as good as an environment.
"$python" -m zipfile -e "$wheels"/bifolio-*.whl "$package"
# The command that the other tests have built, for a test that mounts.
command=${CARGO_TARGET_DIR:-$PWD/target}/debug/bifolio
[ -z "${BIFOLIO_COMMAND:-}" ] && [ -x "$command" ] && export BIFOLIO_COMMAND=$command
PYTHONPATH=$PWD/$package${PYTHONPATH:+:$PYTHONPATH} "$python" -m pytest -q -p no:cacheprovider "$@"
