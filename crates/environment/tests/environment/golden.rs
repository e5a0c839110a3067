//! The terminal report, word for word. To accept changes: `HEADROOM_ACCEPT=1 cargo test --test environment golden`.

use std::path::Path;

use crate::machine::{DRIVER, Machine};

/// With `cuda` the build's own kernels are in the report too, so that it is compared without `cuda` only.
#[cfg(not(feature = "cuda"))]
fn golden(name: &str, machine: &Machine) {
    let report = machine.check().to_string();
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/environment/golden/{name}.txt"));
    if std::env::var_os("HEADROOM_ACCEPT").is_some() {
        std::fs::write(&path, &report).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(report, expected, "{} differs", path.display());
}

#[cfg(feature = "cuda")]
fn golden(_name: &str, machine: &Machine) {
    let _ = (machine.check(), Path::new(""));
}

#[test]
fn healthy_h200() {
    golden("healthy_h200", &Machine::healthy());
}

#[test]
fn ranks_on_two_gpus() {
    let machine = Machine::two_gpus("13.0")
        .with_mpi()
        .with_port("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)")
        .with_port("mlx5_1", "2: INIT", "10 Gb/sec (4X SDR)")
        .file(
            "/proc/self/limits",
            "Max locked memory  8388608  8388608  bytes\n",
        )
        .file(
            "/proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
        )
        .variable("NCCL_P2P_DISABLE", "1");
    golden("ranks_on_two_gpus", &machine);
}

#[test]
fn no_gpu() {
    golden("no_gpu", &Machine::plain().without("/usr/bin/c++"));
}

#[test]
fn module_mismatch() {
    let machine = Machine::healthy()
        .with_module("570.124.06\n")
        .answers("status.nvmlInit_v2=18\nstatus.cuInit=803");
    golden("module_mismatch", &machine);
}

#[test]
fn old_driver_with_new_ptx() {
    let old = "570.124.06";
    let machine = Machine::plain()
        .with_gpu()
        .with_module(old)
        .with_nodes()
        .with_driver_libraries(old)
        .with_cuda_libraries()
        .with_toolkit()
        .answers("driver=570.124.06\ncuda=12080")
        .kernels("candle's kernels", ".version 9.0\n.target sm_90\n");
    golden("old_driver_with_new_ptx", &machine);
}

#[test]
fn container_without_runtime() {
    golden("container_without_runtime", &Machine::container());
}

#[test]
fn neighbour_filling_the_card() {
    let machine = Machine::healthy()
        .answers("memory.used=145000000000\nprocesses=4711:139000000000,4712:5000000000");
    golden("neighbour_filling_the_card", &machine);
}

#[test]
fn ecc_trouble() {
    let machine = Machine::healthy()
        .answers("ecc.volatile=2\necc.lifetime=5\nremap.pending=1\nremapped=3")
        .with_module(DRIVER)
        .file(
            "/dev/kmsg",
            "4,1,2,-;NVRM: Xid (PCI:0000:18:00): 48, pid=4711, name=train, Double Bit ECC Error\n",
        );
    golden("ecc_trouble", &machine);
}
