#!/usr/bin/env bash
# Runs tests in Miri, which finds undefined behaviour in unsafe code: reads of what is not initialized, pointers outside of their
# allocation, references that break each other, data races, leaks.
#
#     scripts/try-miri.sh
#
# It takes the environment checker, which needs no candle: candle's products use instructions of the processor that Miri does not have, and
# its kernels threads that take hours there. It needs a nightly toolchain, and adds Miri to it where it may; without one it says so and
# ends well.
set -euo pipefail
cd "$(dirname "$0")/.."

toolchain=$(rustup toolchain list 2>/dev/null | grep -m1 -o '^nightly[^ ]*' || true)
if [ -z "$toolchain" ]; then
    echo "no nightly toolchain: Miri is not run"
    exit 0
fi
if ! cargo "+$toolchain" miri --version >/dev/null 2>&1 &&
    ! rustup component add --toolchain "$toolchain" miri rust-src >/dev/null 2>&1 ||
    ! cargo "+$toolchain" miri setup; then
    echo "Miri cannot be added to $toolchain, or its standard library not built: it is not run"
    exit 0
fi

# cargo takes what another checkout has built for this one's, but Miri would run it in the other's folder.
built=${CARGO_TARGET_DIR:-target}/miri
rm -rf "$built"/*/debug/{.fingerprint,deps,incremental}/candle[-_]headroom[-_]environment-*

# The tests read files of the checkout and the time.
export MIRIFLAGS="-Zmiri-disable-isolation"
cargo "+$toolchain" miri test --locked --lib -p candle-headroom-environment
