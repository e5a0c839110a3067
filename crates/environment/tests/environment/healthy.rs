//! Common machines in order: no finding about them is worse than a note.

use candle_headroom_environment::{Report, Requirement, Severity};

use crate::machine::{DRIVER, LIBRARIES, Machine, codes};

const CUDA: Requirement = Requirement::CudaInference;

/// In order, and a GPU can be used.
fn fit(machine: Machine) -> Report {
    let report = machine.check();
    assert!(report.worst() <= Severity::Note, "{report}");
    assert!(
        report.is_fit_for(CUDA) && report.is_fit_for(Requirement::Cpu),
        "{report}"
    );
    report
}

/// In order, without a GPU.
fn without_gpu(machine: Machine) -> Report {
    let report = machine.check();
    assert!(report.worst() <= Severity::Note, "{report}");
    assert!(codes(&report).contains(&"HR-101"), "{report}");
    assert_eq!(
        report.summary(),
        "training will run on the CPU: this machine has no NVIDIA GPU"
    );
    report
}

#[test]
fn a_machine_with_everything() {
    let expected = [
        "HR-100", "HR-114", "HR-200", "HR-300", "HR-400", "HR-500", "HR-600", "HR-700", "HR-800",
    ];
    let report = fit(Machine::healthy());
    let mut found = codes(&report);
    // A build with `cuda` has kernels of its own to judge.
    found.retain(|code| *code != "HR-312");
    assert_eq!(found, expected, "{report}");
}

/// Ubuntu with only the driver: the libraries that programs with `cuda` lack are reported, and nothing is broken.
#[test]
fn the_driver_alone() {
    let report = Machine::plain()
        .with_gpu()
        .with_module(DRIVER)
        .with_nodes()
        .with_driver_libraries(DRIVER)
        .check();
    assert!(report.worst() <= Severity::Note, "{report}");
    assert!(
        codes(&report).contains(&"HR-401") && report.is_fit_for(Requirement::Cpu),
        "{report}"
    );
    assert!(
        !report.is_fit_for(CUDA),
        "a program with `cuda` would not start"
    );
}

/// The container device interface sets the variable so, to keep the older runtime off.
#[test]
fn a_container_by_cdi() {
    let report = fit(Machine::healthy()
        .file("/.dockerenv", "")
        .variable("NVIDIA_VISIBLE_DEVICES", "void")
        .variable("NVIDIA_DRIVER_CAPABILITIES", "utility"));
    assert!(codes(&report).contains(&"HR-116"));
}

/// NVIDIA's images have cuda-compat before the driver's own libcuda.
#[test]
fn an_image_of_nvidia_s() {
    let compat = "/usr/local/cuda/compat/lib";
    let report = fit(Machine::healthy()
        .file("/.dockerenv", "")
        .with_stand_ins_in("/usr/local/cuda-13.0/compat/lib")
        .without(&format!("{compat}/libnvidia-ml.so.1"))
        .library_in(compat, "libnvidia-ptxjitcompiler.so.1", "590.44.01")
        .variable("LD_LIBRARY_PATH", compat)
        .variable("NVIDIA_VISIBLE_DEVICES", "all"));
    assert!(codes(&report).contains(&"HR-408"));
}

/// A module of another name, nothing on the PCI bus, and no NVML.
#[test]
fn jetson_up_to_jetpack_5() {
    let report = fit(Machine::healthy()
        .answers("integrated=1")
        .without("/sys/module/nvidia")
        .without("/sys/bus/pci")
        .without("/dev/nvidia0")
        .without("/dev/nvidiactl")
        .without("/dev/nvidia-uvm")
        .without(&format!("{LIBRARIES}/libnvidia-ml.so.1"))
        .file("/sys/module/nvgpu/initstate", "live\n"));
    assert!(
        report.is_fit_for("cuda,mem=8GiB".parse().unwrap()),
        "{report}"
    );
}

/// A driver as on other machines, whose NVML reports little.
#[test]
fn jetson_from_jetpack_6_on() {
    let untold = [
        "MemoryInfo",
        "MemoryInfo_v2",
        "TotalEccErrors",
        "EccMode",
        "PowerUsage",
        "MigMode",
    ];
    let untold = untold
        .map(|name| format!("status.nvmlDeviceGet{name}=3"))
        .join("\n");
    let uuid = "uuid=GPU-00000000-0000-0000-0000-000000000000";
    let report = fit(Machine::healthy()
        .answers(&format!("{untold}\n{uuid}\nintegrated=1"))
        .without("/sys/bus/pci")
        .without("/dev/nvidia-uvm"));
    assert!(
        report.is_fit_for("cuda,mem=8GiB".parse().unwrap()),
        "{report}"
    );
}

#[test]
fn wsl_with_a_gpu() {
    let report = fit(Machine::wsl()
        .with_stand_ins_in("/usr/lib/wsl/lib")
        .with_cuda_libraries());
    assert!(codes(&report).contains(&"HR-108"));
}

/// `/dev/dxg` exists for GPUs of any vendor.
#[test]
fn wsl_without_a_gpu_of_nvidia_s() {
    let report = without_gpu(Machine::wsl().file("/usr/lib/wsl/lib/libdxcore.so", ""));
    let text = report.to_string();
    assert!(text.contains("Windows passes no NVIDIA GPU in"), "{text}");
    without_gpu(Machine::wsl().without("/dev/dxg"));
}

/// 32-bit libraries of a driver that was replaced; the linker's configuration names their folder first.
#[test]
fn libraries_of_another_word_size() {
    let folder = "/usr/lib/i386-linux-gnu";
    fit(Machine::healthy()
        .file(
            &format!("{folder}/libnvidia-ml.so.1"),
            b"\x7fELF\x01\x01\x01",
        )
        .library_in(folder, "libcuda.so.1", "570.124.06")
        .file(
            &format!("{folder}/libcuda.so.570.124.06"),
            b"\x7fELF\x01\x01\x01",
        )
        .file("/etc/ld.so.conf.d/i386.conf", format!("{folder}\n")));
}

/// Python's packages name their files by the major version alone: nothing says that they are other versions than the toolkit's.
#[test]
fn libraries_of_python_packages_before_the_toolkit() {
    let packages = "/opt/venv/nvidia/cu13/lib";
    let names = ["libcublas.so.13", "libcudart.so.13", "libcurand.so.10"];
    let machine = names.into_iter().fold(Machine::healthy(), |machine, name| {
        machine.file(&format!("{packages}/{name}"), "")
    });
    let report = fit(machine.variable("LD_LIBRARY_PATH", packages));
    let found = report
        .findings()
        .iter()
        .find(|found| found.code.id == "HR-400");
    let seen = found.expect("the libraries").seen.to_string();
    assert!(seen.contains("libcudart.so.13, libcublas.so.13"), "{seen}");
}

/// NVML and CUDA work, so unused libraries do not matter.
#[test]
fn a_stale_library_of_the_driver() {
    let report = Machine::healthy()
        .library_in("/opt/old", "libnvidia-ptxjitcompiler.so.1", "570.124.06")
        .with_module("580.82.07")
        .check();
    assert!(!codes(&report).contains(&"HR-104"), "{report}");
    assert!(report.is_fit_for(CUDA), "{report}");
}

/// Reading a data set fills a group with page cache, which the kernel gives back.
#[test]
fn a_group_full_of_page_cache() {
    fit(Machine::healthy()
        .file("/proc/self/cgroup", "0::/\n")
        .file("/sys/fs/cgroup/memory.max", "2147483648\n")
        .file("/sys/fs/cgroup/memory.current", "2147480000\n")
        .file(
            "/sys/fs/cgroup/memory.stat",
            "anon 1000\ninactive_file 2000000000\n",
        ));
}

/// Swap that was filled once and never asked for again.
#[test]
fn a_full_swap_with_much_memory_left() {
    let meminfo = "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 1048576 kB\nSwapFree: 1024 kB\n";
    fit(Machine::healthy().file("/proc/meminfo", meminfo));
}

/// A machine for building: the toolkit with its stub of libcuda, and variables for programs that run elsewhere.
#[test]
fn no_gpu_but_a_toolkit_with_stubs() {
    let stubs = "/usr/local/cuda/lib64/stubs";
    for status in [0, 34, 35, 100, 999] {
        let machine = Machine::plain()
            .with_toolkit()
            .with_driver_libraries(DRIVER)
            .answers(&format!("status={status}\ngpus=0\ndevices=0\ncuda=11000"));
        without_gpu(
            machine
                .library_in(stubs, "libcuda.so.1", "1")
                .variable("LD_LIBRARY_PATH", stubs)
                .variable("CUDA_DISABLE_PTX_JIT", "1")
                .variable("CUDA_LAUNCH_BLOCKING", "1")
                .variable("CUDA_VISIBLE_DEVICES", "")
                .kernels("mine", ".version 9.0\n.target sm_90\n"),
        );
    }
}

/// A small card for the screens beside the one that computes.
#[test]
fn nouveau_on_another_gpu() {
    fit(Machine::healthy()
        .file("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
        .file("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
        .link(
            "/sys/bus/pci/devices/0000:01:00.0/driver",
            "../../../bus/pci/drivers/nouveau",
        ));
}

#[test]
fn cuda_s_own_list_outweighs_its_variable() {
    for value in ["none", "0,0", "GPU-ffff"] {
        let machine = Machine::healthy().variable("CUDA_VISIBLE_DEVICES", value);
        let report = machine.check();
        assert!(report.is_fit_for(CUDA), "{value}\n{report}");
    }
}
