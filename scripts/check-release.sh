#!/usr/bin/env bash
# What a release needs besides the other steps of .ci/run: the licences and sources of all dependencies, the oldest Rust, the pages as
# docs.rs builds them, and the public API since the last release.
#
#     scripts/check-release.sh
#
# cargo-deny is installed where it is missing (1.5 minutes on 2 cores), and so is cargo-semver-checks (3.5 minutes) once there is a release
# to compare with; both into a cache folder. Without rustup or a toolchain, the step that needs it says so.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${XDG_CACHE_HOME:-$HOME/.cache}/candle-headroom"
target="${CARGO_TARGET_DIR:-$cache/target}"
export PATH="$cache/tools/bin:$PATH"
skipped=()
# What builds without NVIDIA's compiler and an MPI library.
features=image,layers,metrics,nvtx,object-store,parquet,testing

# install PACKAGE VERSION [OPTION…]
install() {
  local package=$1 version=$2 build
  shift 2
  command -v "$package" >/dev/null && return
  build=$(mktemp -d)
  CARGO_TARGET_DIR="$build" cargo install --locked --quiet --root "$cache/tools" "$package@$version" "$@" || {
    rm -rf "$build"
    return 1
  }
  rm -rf "$build"
}

echo "-- licences, bans and sources"
install cargo-deny 0.20.2 --no-default-features # without git, which only advisories need
cargo deny check licenses bans sources

oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
echo "-- Rust $oldest"
if cargo "+$oldest" --version 2>/dev/null || rustup toolchain install "$oldest" --profile minimal --no-self-update; then
  CARGO_TARGET_DIR="$target/oldest" cargo "+$oldest" check --lib --bins --locked --features "$features,library"
else
  echo "no toolchain $oldest, and none to be had: not built with it"
  skipped+=("Rust $oldest")
fi

echo "-- the pages as docs.rs builds them"
# Any nightly that is there: what it warns about may differ from day to day.
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
  RUSTDOCFLAGS="--cfg docsrs" CARGO_TARGET_DIR="$target/docsrs" \
    cargo +nightly doc --lib --no-deps --locked --features "$features"
else
  echo "no nightly toolchain: the marks of features are not built"
  skipped+=("docs.rs' pages")
fi

echo "-- the public API"
if released=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null); then
  install cargo-semver-checks 0.51.0
  CARGO_TARGET_DIR="$target" cargo semver-checks --package candle-headroom --baseline-rev "$released" \
    --only-explicit-features --features "$features"
else
  echo "no tag v… yet: compared from the first release on"
  skipped+=("the public API")
fi

[ ${#skipped[@]} -eq 0 ] || printf 'not checked: %s\n' "${skipped[@]}"
