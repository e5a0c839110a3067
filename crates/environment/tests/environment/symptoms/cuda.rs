//! libcuda, kernels and the driver's age.

use super::{Symptom, symptom};
use crate::machine::{LIBRARIES, Machine};

pub const SYMPTOMS: &[Symptom] = &[
    symptom("libcuda missing", "HR-301", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libcuda.so.1"))
    }),
    symptom("CUDA 34, a stub", "HR-302", answering!("status.cuInit=34")),
    symptom(
        "CUDA 100, no device",
        "HR-303",
        answering!("status.cuInit=100"),
    ),
    symptom(
        "CUDA 101, invalid device",
        "HR-303",
        answering!("status.cuInit=101"),
    ),
    symptom("no device counted", "HR-303", answering!("devices=0")),
    symptom(
        "CUDA 804, cuda-compat",
        "HR-304",
        answering!("status.cuInit=804"),
    ),
    symptom(
        "CUDA 802, fabric manager",
        "HR-305",
        answering!("status.cuInit=802"),
    ),
    symptom("CUDA 805, MPS", "HR-306", answering!("status.cuInit=805")),
    symptom("CUDA 806, MPS", "HR-306", answering!("status.cuInit=806")),
    symptom("CUDA 807, MPS", "HR-306", answering!("status.cuInit=807")),
    symptom("CUDA 808, MPS", "HR-306", answering!("status.cuInit=808")),
    symptom("CUDA 809, MPS", "HR-306", answering!("status.cuInit=809")),
    symptom(
        "CUDA 2, out of memory",
        "HR-307",
        answering!("status.cuInit=2"),
    ),
    symptom("CUDA 214, ECC", "HR-307", answering!("status.cuInit=214")),
    symptom(
        "CUDA 700, a kernel's invalid address",
        "HR-307",
        answering!("status.cuInit=700"),
    ),
    symptom(
        "CUDA 719, a kernel failed",
        "HR-307",
        answering!("status.cuInit=719"),
    ),
    symptom(
        "an unknown CUDA code",
        "HR-307",
        answering!("status.cuInit=4242"),
    ),
    symptom("CUDA 222, PTX newer than the driver", "HR-308", || {
        Machine::healthy().kernels("mine", ".version 9.2\n.target sm_90\n")
    }),
    symptom("CUDA 218, PTX for a later GPU", "HR-309", || {
        Machine::healthy().kernels("mine", ".version 8.7\n.target sm_100\n")
    }),
    symptom("CUDA 209, PTX for another kind", "HR-309", || {
        Machine::healthy()
            .answers("major=10")
            .kernels("mine", ".version 8.7\n.target sm_90a\n")
    }),
    symptom("PTX of an unknown version", "HR-310", || {
        Machine::healthy().kernels("mine", ".version 99.0\n.target sm_90\n")
    }),
    symptom("libraries newer than the driver", "HR-313", || {
        Machine::healthy()
            .with_module("570.124.06")
            .with_driver_libraries("570.124.06")
            .answers("driver=570.124.06\ncuda=12080")
    }),
    symptom(
        "a driver before CUDA 12.2",
        "HR-314",
        answering!("cuda=12010"),
    ),
    symptom(
        "a GPU without bf16",
        "HR-315",
        answering!("major=7\nminor=5"),
    ),
];
