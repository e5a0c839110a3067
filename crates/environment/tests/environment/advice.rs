//! Findings and remedies on unusual machines.

use candle_headroom_environment::Severity;

use crate::machine::{DRIVER, LIBRARIES, Machine};

#[test]
fn libraries_that_pip_installed_are_found() {
    let packages = "/venv/lib/python3.12/site-packages/nvidia";
    let report = Machine::plain()
        .with_gpu()
        .with_module(DRIVER)
        .with_nodes()
        .with_driver_libraries(DRIVER)
        .library_in(&format!("{packages}/cublas/lib"), "libcublas.so.12", "12.4")
        .library_in(
            &format!("{packages}/cuda_runtime/lib"),
            "libcudart.so.12",
            "12.4",
        )
        .variable("VIRTUAL_ENV", "/venv")
        .check();
    let finding = report
        .findings()
        .iter()
        .find(|finding| finding.code.id == "HR-401");
    let command = format!(
        "export LD_LIBRARY_PATH={packages}/cublas/lib:{packages}/cuda_runtime/lib:$LD_LIBRARY_PATH"
    );
    assert_eq!(finding.unwrap().command, command);
}

#[test]
fn a_gpu_for_virtual_machines() {
    let report = Machine::plain()
        .with_gpu()
        .link(
            "/sys/bus/pci/devices/0000:18:00.0/driver",
            "../../../bus/pci/drivers/vfio-pci",
        )
        .check();
    assert!(report.worst() <= Severity::Note, "{report}");
    assert!(!report.to_string().contains("modprobe"), "{report}");
}

/// Without `--nv` Apptainer passes the nodes in, but no libraries.
#[test]
fn apptainer_needs_an_option() {
    let report = Machine::healthy()
        .without(&format!("{LIBRARIES}/libcuda.so.1"))
        .variable("APPTAINER_CONTAINER", "/images/train.sif")
        .check();
    assert!(
        report.to_string().contains("apptainer exec --nv"),
        "{report}"
    );
}

#[test]
fn a_process_listed_in_a_container_may_be_this_one() {
    let report = Machine::healthy()
        .file("/.dockerenv", "")
        .answers("memory.used=145000000000\nprocesses=4711:139000000000")
        .check();
    let text = report.to_string();
    assert!(
        text.contains("this process may be among them") && !text.contains("by others"),
        "{text}"
    );
}
