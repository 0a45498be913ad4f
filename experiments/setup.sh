# SPDX-License-Identifier: Apache-2.0
# Shell functions that experiments/quickstart, tests/run and .ci/run share. Source it; do not run it.

PACELINE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PACELINE_JOBS=${PACELINE_JOBS:-$(nproc)}

# What building and running needs on Debian 12.
PACELINE_PACKAGES=(g++ cmake ninja-build ccache libzmq3-dev cppzmq-dev libboost1.81-dev libdnnl-dev
  libcli11-dev libtomlplusplus-dev libfmt-dev nlohmann-json3-dev zlib1g-dev
  libgtest-dev dataset-fashion-mnist)
# What .ci/run checks with besides.
PACELINE_LINT_PACKAGES=(clang-format-14 clang-tidy-14 python3)

step() { printf '\n== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ensure_packages NAME...: installs what is missing; quiet when nothing is.
ensure_packages() {
  command -v dpkg-query >/dev/null || {
    echo "no dpkg on this system: taking the libraries as installed (see README.md)" >&2
    return 0
  }
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null && sudo=(sudo) ||
      die "packages are missing and this is not root; run:  sudo apt-get install -y ${missing[*]}"
  fi
  step "installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq || die "apt-get update failed"
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null || die "apt failed; run:  apt-get install -y ${missing[*]}"
}

# build PRESET [TARGET...]: configures once, then builds what changed.
build() {
  local preset=$1 log
  shift
  log=$PACELINE_ROOT/build/$preset.log
  mkdir -p "$PACELINE_ROOT/build"
  step "building ($preset)"
  (cd "$PACELINE_ROOT" &&
    { cmake --preset "$preset" -DPACELINE_QUICK="${PACELINE_QUICK:-OFF}" \
        ${PACELINE_WERROR:+-DPACELINE_WERROR=$PACELINE_WERROR} >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; } &&
    cmake --build --preset "$preset" -j "$PACELINE_JOBS" ${1:+--target "$@"} >"$log" 2>&1 ||
    { tail -n 60 "$log" >&2; exit 1; }) || die "the $preset build failed (build/$preset.log)"
}
