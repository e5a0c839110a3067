//! The kernel, its module and its log.

use super::{Symptom, symptom, wsl};
use crate::machine::{DRIVER, Machine};

pub const SYMPTOMS: &[Symptom] = &[
    symptom("no GPU", "HR-101", Machine::plain),
    symptom("a GPU without a driver", "HR-102", || {
        Machine::plain().with_gpu()
    }),
    symptom("NVML 9, driver not loaded", "HR-102", || {
        Machine::healthy()
            .without("/sys/module/nvidia")
            .answers("status.nvmlInit_v2=9\nstatus.cuInit=100")
    }),
    symptom("nouveau holds the GPU", "HR-103", || {
        Machine::plain().with_gpu().link(
            "/sys/bus/pci/devices/0000:18:00.0/driver",
            "../../../bus/pci/drivers/nouveau",
        )
    }),
    symptom("kernel module and library files differ", "HR-104", || {
        Machine::healthy()
            .with_module("570.124.06\n")
            .answers("status.nvmlInit_v2=999\nstatus.cuInit=999")
    }),
    symptom("NVML 18", "HR-104", answering!("status.nvmlInit_v2=18")),
    symptom("CUDA 803", "HR-104", answering!("status.cuInit=803")),
    symptom("no /dev/nvidiactl", "HR-105", || {
        Machine::healthy()
            .without("/dev/nvidiactl")
            .answers("status.cuInit=100")
    }),
    symptom("no /dev/nvidia0", "HR-105", || {
        Machine::healthy()
            .without("/dev/nvidia0")
            .answers("status.cuInit=100")
    }),
    symptom("no /dev/nvidia-uvm", "HR-106", || {
        Machine::healthy()
            .without("/dev/nvidia-uvm")
            .answers("status.cuInit=100")
    }),
    symptom("/dev/nvidia0 cannot be opened", "HR-107", || {
        // Tests may run as root, who may open anything: but nobody opens a folder for writing.
        Machine::healthy()
            .without("/dev/nvidia0")
            .file("/dev/nvidia0/x", "")
            .answers("status.cuInit=100")
    }),
    symptom("a GPU set aside for virtual machines", "HR-118", || {
        Machine::plain().with_gpu().link(
            "/sys/bus/pci/devices/0000:18:00.0/driver",
            "../../../bus/pci/drivers/vfio-pci",
        )
    }),
    symptom("WSL", "HR-108", wsl),
    symptom("a Linux driver inside WSL", "HR-109", || {
        wsl()
            .with_driver_libraries(DRIVER)
            .without("/usr/lib/wsl/lib/libcuda.so.1")
            .answers("status.cuInit=100")
    }),
    symptom(
        "Xid 48, ECC",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 48, pid=1, DBE"),
    ),
    symptom(
        "Xid 64, remapping failed",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 64, row remapper"),
    ),
    symptom(
        "Xid 79, off the bus",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."),
    ),
    symptom(
        "Xid 95, uncontained",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 95, pid=1, Uncontained"),
    ),
    symptom(
        "Xid 119, GSP",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 119, pid=1, Timeout"),
    ),
    symptom(
        "Xid 120, GSP",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 120, pid=1, GSP task"),
    ),
    symptom(
        "Xid 154, a reset",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 154, changed to 0x1 (GPU Reset Required)"),
    ),
    symptom(
        "Xid 13, an application's",
        "HR-111",
        logging!("NVRM: Xid (PCI:0000:18:00): 13, pid=1, Graphics Exception"),
    ),
    symptom(
        "Xid 31, an application's",
        "HR-111",
        logging!("NVRM: Xid (PCI:0000:18:00): 31, pid=1, MMU Fault"),
    ),
    symptom(
        "Xid 94, contained",
        "HR-111",
        logging!("NVRM: Xid (PCI:0000:18:00): 94, pid=1, Contained"),
    ),
    symptom(
        "Xid 63, to be ignored",
        "HR-112",
        logging!("NVRM: Xid (PCI:0000:18:00): 63, Row Remapper"),
    ),
    symptom(
        "an unknown Xid",
        "HR-112",
        logging!("NVRM: Xid (PCI:0000:18:00): 4242, new"),
    ),
    symptom("an unreadable kernel log", "HR-113", || {
        Machine::healthy().without("/dev/kmsg")
    }),
];
