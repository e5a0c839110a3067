//! Libraries and the toolkit.

use super::{Symptom, symptom};
use crate::machine::{LIBRARIES, Machine};

pub const SYMPTOMS: &[Symptom] = &[
    // Libraries
    symptom("exit 127: no libcudart", "HR-401", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libcudart.so.13"))
    }),
    symptom("exit 127: libcublas in the toolkit alone", "HR-401", || {
        Machine::healthy()
            .without(&format!("{LIBRARIES}/libcublas.so.13"))
            .library_in("/usr/local/cuda-13.0/lib64", "libcublas.so.13", "13.1.0.3")
    }),
    symptom("a library in two versions", "HR-403", || {
        Machine::healthy()
            .library_in("/opt/cuda/lib64", "libcublas.so.13", "13.0.0.19")
            .variable("LD_LIBRARY_PATH", "/opt/cuda/lib64")
    }),
    symptom("libraries of two CUDAs", "HR-404", || {
        Machine::healthy()
            .without(&format!("{LIBRARIES}/libnvrtc.so.13"))
            .library("libnvrtc.so.12", "12.8.93")
    }),
    symptom(
        "stubs on the path",
        "HR-405",
        with_variable!("LD_LIBRARY_PATH", "/usr/local/cuda/lib64/stubs"),
    ),
    symptom(
        "stubs of the simulated driver on the path",
        "HR-405",
        with_variable!("LD_LIBRARY_PATH", "/opt/simulated-cuda/stubs-12"),
    ),
    symptom("CUDA 221, no JIT compiler", "HR-406", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libnvidia-ptxjitcompiler.so.1"))
    }),
    symptom("no cuDNN", "HR-407", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libcudnn.so.9"))
    }),
    symptom("cuda-compat on the path", "HR-408", || {
        Machine::healthy()
            .library_in("/usr/local/cuda/compat", "libcuda.so.1", "590.44.01")
            .file(
                "/etc/ld.so.conf.d/000_cuda.conf",
                "/usr/local/cuda/compat\n",
            )
    }),
    symptom("cuDNN newer than the driver", "HR-409", || {
        Machine::plain()
            .with_gpu()
            .with_nodes()
            .with_module("515.43.04")
            .with_driver_libraries("515.43.04")
            .answers("driver=515.43.04\ncuda=11070")
            .library("libcudart.so.12", "12.4.127")
            .library("libcudnn.so.9", "9.1.0")
    }),
    symptom(
        "a folder of the path that does not exist",
        "HR-410",
        with_variable!("LD_LIBRARY_PATH", "/nowhere"),
    ),
    // The toolkit
    symptom("no toolkit", "HR-501", || {
        Machine::healthy().without("/usr/local/cuda")
    }),
    symptom("two toolkits", "HR-502", || {
        Machine::healthy()
            .file("/opt/cuda/bin/nvcc", "")
            .variable("CUDA_HOME", "/opt/cuda")
    }),
    symptom(
        "a toolkit that is not there",
        "HR-503",
        with_variable!("CUDA_HOME", "/opt/cuda"),
    ),
    symptom(
        "a toolkit newer than the driver",
        "HR-504",
        answering!("cuda=12080"),
    ),
    symptom(
        "CUDA_COMPUTE_CAP for a later GPU",
        "HR-505",
        with_variable!("CUDA_COMPUTE_CAP", "100"),
    ),
    symptom(
        "CUDA_COMPUTE_CAP is no number",
        "HR-505",
        with_variable!("CUDA_COMPUTE_CAP", "hopper"),
    ),
    symptom("no C++ compiler", "HR-506", || {
        Machine::healthy().without("/usr/bin/c++")
    }),
];
