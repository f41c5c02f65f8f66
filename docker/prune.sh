#!/bin/sh
# prune.sh ENVIRONMENT: remove the files of a Python environment that no command of GRACE reads:
# headers, other projects' tests and tools, static libraries, and pip.
set -eu
rm -f "$1"/bin/pip* "$1"/bin/[Aa]ctivate*
cd "$1"/lib/python3*/site-packages
rm -rf pip pip-*.dist-info torch/include torch/test pyarrow/include pyarrow/tests nvidia/*/include
[ ! -d torch ] || find torch/bin -type f ! -name torch_shm_manager -delete
find . -name '*.a' -delete
find numpy -depth -type d -name tests -exec rm -rf {} +
