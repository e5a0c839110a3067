//! Statuses of CUDA and of NVML: what each means, and what helps.

/// A status code of a library, its cause and its remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) number: u32,
    /// As in the library's header.
    pub(crate) name: &'static str,
    pub(crate) cause: &'static str,
    pub(crate) remedy: &'static str,
}

/// A status of the CUDA driver.
pub(crate) fn cuda(number: u32) -> Option<&'static Status> {
    CUDA.iter().find(|status| status.number == number)
}

/// A return code of NVML.
pub(crate) fn nvml(number: u32) -> Option<&'static Status> {
    NVML.iter().find(|status| status.number == number)
}

/// Number, name and cause, then the remedy.
macro_rules! statuses {
    ($($number:literal $name:literal $cause:literal $remedy:expr;)*) => {
        &[$(Status { number: $number, name: $name, cause: $cause, remedy: $remedy }),*]
    };
}

const APPLICATION_BUG: &str = "run the program under compute-sanitizer to find the kernel";
const HARDWARE: &str =
    "check `nvidia-smi -q -d ECC` and the kernel log for Xid messages; the GPU may need a reset";
const MPS: &str = "check the MPS server's log and restart it: `echo quit | nvidia-cuda-mps-control`, then `nvidia-cuda-mps-control -d`";
const RELOAD: &str =
    "restart containers, then reload the kernel module or reboot, so that both have one version";

/// Statuses of the CUDA driver that say something about the machine, the build or the device.
/// NVIDIA, CUDA Driver API, `CUresult`, docs.nvidia.com/cuda/cuda-driver-api; names and numbers as in CUDA 13; 2026-11.
pub(crate) const CUDA: &[Status] = statuses! {
    2 "CUDA_ERROR_OUT_OF_MEMORY" "the device's memory, a limit, or page-locked host memory is used up"
        "use smaller work or a smaller model, or free what other processes hold: `nvidia-smi` lists them";
    3 "CUDA_ERROR_NOT_INITIALIZED" "the driver was not initialized in this process"
        "create the device in the process that uses it: a fork does not inherit it";
    34 "CUDA_ERROR_STUB_LIBRARY" "the stub of libcuda that is meant for linking was loaded"
        "remove the toolkit's `stubs` folder from LD_LIBRARY_PATH";
    36 "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER" "the driver is too old for a call of the program"
        "update the driver, or build with an older toolkit";
    46 "CUDA_ERROR_DEVICE_UNAVAILABLE" "the device is in exclusive use or is being reset"
        "check the compute mode and other processes with `nvidia-smi`";
    100 "CUDA_ERROR_NO_DEVICE" "the driver finds no GPU that this process may use"
        "check CUDA_VISIBLE_DEVICES, /dev/nvidia* and, in a container, that it was started with `--gpus all`";
    101 "CUDA_ERROR_INVALID_DEVICE" "there is no GPU of this number, or its device nodes are missing"
        "check CUDA_VISIBLE_DEVICES, the ordinal that the program asks for, and /dev/nvidia-uvm";
    102 "CUDA_ERROR_DEVICE_NOT_LICENSED" "the virtual GPU has no licence"
        "check the licence server of the virtual GPU";
    200 "CUDA_ERROR_INVALID_IMAGE" "a kernel's code is damaged"
        "build again from a clean target folder";
    209 "CUDA_ERROR_NO_BINARY_FOR_GPU" "the program holds no code for this GPU"
        "build with CUDA_COMPUTE_CAP set to the GPU's compute capability";
    214 "CUDA_ERROR_ECC_UNCORRECTABLE" "an uncorrectable memory error on the GPU"
        HARDWARE;
    218 "CUDA_ERROR_INVALID_PTX" "kernels were compiled for another kind of GPU"
        "build with CUDA_COMPUTE_CAP set to the GPU's compute capability";
    220 "CUDA_ERROR_NVLINK_UNCORRECTABLE" "an uncorrectable NVLink error"
        HARDWARE;
    221 "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" "the driver's compiler library libnvidia-ptxjitcompiler is missing"
        "install the driver in full; in a container add `compute` to NVIDIA_DRIVER_CAPABILITIES";
    222 "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" "the kernels' PTX is newer than the driver"
        "update the driver, or build with a toolkit that is no newer";
    223 "CUDA_ERROR_JIT_COMPILATION_DISABLED" "PTX compilation is disabled"
        "unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT";
    226 "CUDA_ERROR_CONTAINED" "a memory error that the GPU contained to this process"
        HARDWARE;
    300 "CUDA_ERROR_INVALID_SOURCE" "a kernel's code cannot be read"
        "build again from a clean target folder";
    302 "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND" "a library of the driver lacks a function"
        "reinstall the driver: its libraries have several versions";
    303 "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED" "a library of the driver does not start"
        "reinstall the driver: its libraries have several versions";
    304 "CUDA_ERROR_OPERATING_SYSTEM" "the operating system refused a request of the driver"
        "check the permissions of /dev/nvidia*, and the container's device rules";
    700 "CUDA_ERROR_ILLEGAL_ADDRESS" "a kernel read or wrote an invalid address"
        APPLICATION_BUG;
    701 "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" "a kernel needs more registers or shared memory than there are"
        "use a smaller block, or build for this GPU";
    702 "CUDA_ERROR_LAUNCH_TIMEOUT" "a kernel ran longer than the display watchdog allows"
        "use a GPU without a display, or smaller kernels";
    710 "CUDA_ERROR_ASSERT" "a device-side assertion failed"
        APPLICATION_BUG;
    714 "CUDA_ERROR_HARDWARE_STACK_ERROR" "the GPU's call stack is corrupt"
        APPLICATION_BUG;
    715 "CUDA_ERROR_ILLEGAL_INSTRUCTION" "a kernel executed an illegal instruction"
        APPLICATION_BUG;
    716 "CUDA_ERROR_MISALIGNED_ADDRESS" "a kernel used a misaligned address"
        APPLICATION_BUG;
    717 "CUDA_ERROR_INVALID_ADDRESS_SPACE" "a kernel used an address of the wrong space"
        APPLICATION_BUG;
    718 "CUDA_ERROR_INVALID_PC" "a kernel's program counter left its address space"
        APPLICATION_BUG;
    719 "CUDA_ERROR_LAUNCH_FAILED" "a kernel failed while it ran"
        APPLICATION_BUG;
    721 "CUDA_ERROR_TENSOR_MEMORY_LEAK" "a kernel ended without freeing its tensor memory"
        APPLICATION_BUG;
    800 "CUDA_ERROR_NOT_PERMITTED" "the driver does not permit this to the process"
        "check the permissions of /dev/nvidia* and the compute mode";
    801 "CUDA_ERROR_NOT_SUPPORTED" "this GPU or driver does not support the call"
        "update the driver; under WSL or on a virtual GPU some calls are missing";
    802 "CUDA_ERROR_SYSTEM_NOT_READY" "the NVSwitch fabric is not ready"
        "start the fabric manager in the driver's version: `sudo systemctl restart nvidia-fabricmanager`";
    803 "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" "the kernel module and the user library have different versions"
        RELOAD;
    804 "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" "the forward-compatibility libcuda (cuda-compat) does not support this GPU"
        "remove the `compat` folder from LD_LIBRARY_PATH and /etc/ld.so.conf.d, so that the driver's own libcuda is loaded";
    805 "CUDA_ERROR_MPS_CONNECTION_FAILED" "the MPS server does not answer"
        MPS;
    806 "CUDA_ERROR_MPS_RPC_FAILURE" "a call to the MPS server failed"
        MPS;
    807 "CUDA_ERROR_MPS_SERVER_NOT_READY" "the MPS server is starting or recovering"
        MPS;
    808 "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" "the MPS server has reached its maximum number of clients"
        "end other clients of the MPS server, or run without it";
    809 "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" "the MPS server has reached the device's maximum number of connections"
        "end other clients of the MPS server, or run without it";
    810 "CUDA_ERROR_MPS_CLIENT_TERMINATED" "the MPS server ended this client"
        "check the MPS server's log";
    919 "CUDA_ERROR_FABRIC_NOT_READY" "the NVLink fabric is not ready"
        "wait for the fabric manager: `nvidia-smi -q` shows the fabric's state";
    999 "CUDA_ERROR_UNKNOWN" "the driver failed for an unknown reason"
        "check the kernel log; after suspend, reload the module nvidia_uvm, otherwise reboot";
};

/// NVML's return codes.
/// NVIDIA, NVML API Reference, `nvmlReturn_t`, and DCGM's testing/python3/dcgm_nvml.py; 2026-11.
pub(super) const NVML: &[Status] = statuses! {
    1 "NVML_ERROR_UNINITIALIZED" "NVML was not initialized"
        "report this: the checker initializes NVML";
    2 "NVML_ERROR_INVALID_ARGUMENT" "NVML rejected an argument"
        "report this with the driver's version";
    3 "NVML_ERROR_NOT_SUPPORTED" "this GPU or driver does not support the call"
        "nothing; the value is unknown";
    4 "NVML_ERROR_NO_PERMISSION" "this user has no permission for the call"
        "give the user access to /dev/nvidia*, or run as root";
    5 "NVML_ERROR_ALREADY_INITIALIZED" "NVML was already initialized"
        "update the driver: this code is from before 2012";
    6 "NVML_ERROR_NOT_FOUND" "NVML does not know the device or value"
        "nothing; the value is unknown";
    7 "NVML_ERROR_INSUFFICIENT_SIZE" "the buffer was too small"
        "retry";
    8 "NVML_ERROR_INSUFFICIENT_POWER" "the GPU's power cables are not attached"
        "attach the GPU's auxiliary power";
    9 "NVML_ERROR_DRIVER_NOT_LOADED" "the kernel module is not loaded"
        "load it: `sudo modprobe nvidia`; if that fails, `dmesg` shows the reason";
    10 "NVML_ERROR_TIMEOUT" "the driver did not respond in time"
        "check the kernel log for Xid messages";
    11 "NVML_ERROR_IRQ_ISSUE" "the kernel has an interrupt problem with the GPU"
        "check the kernel log, the BIOS settings and the slot";
    12 "NVML_ERROR_LIBRARY_NOT_FOUND" "libnvidia-ml is missing or incomplete"
        "install the driver's user libraries in the kernel module's version";
    13 "NVML_ERROR_FUNCTION_NOT_FOUND" "this NVML is too old for the call"
        "nothing, or update the driver";
    14 "NVML_ERROR_CORRUPTED_INFOROM" "the GPU's infoROM is corrupt"
        "update or re-flash the firmware with the vendor's help";
    15 "NVML_ERROR_GPU_IS_LOST" "the GPU has fallen off the bus"
        "reboot; if the error returns, check power, cooling and seating";
    16 "NVML_ERROR_RESET_REQUIRED" "the GPU needs a reset"
        "end its processes, then `sudo nvidia-smi --gpu-reset -i N`";
    17 "NVML_ERROR_OPERATING_SYSTEM" "the operating system or its control groups block the device"
        "check the container's device rules and the permissions of /dev/nvidia*";
    18 "NVML_ERROR_LIB_RM_VERSION_MISMATCH" "the kernel module and the user library have different versions"
        RELOAD;
    19 "NVML_ERROR_IN_USE" "the device is in use"
        "end its processes first";
    20 "NVML_ERROR_MEMORY" "NVML ran out of host memory"
        "free host memory";
    21 "NVML_ERROR_NO_DATA" "there is no data"
        "nothing; the value is unknown";
    22 "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED" "ECC is not supported on this virtual GPU"
        "disable ECC on the host";
    23 "NVML_ERROR_INSUFFICIENT_RESOURCES" "the GPU has no resources left"
        "end other processes";
    24 "NVML_ERROR_FREQ_NOT_SUPPORTED" "the GPU does not support this frequency"
        "nothing; the value is unknown";
    25 "NVML_ERROR_ARGUMENT_VERSION_MISMATCH" "this NVML is too old for the call's structure"
        "nothing, or update the driver";
    26 "NVML_ERROR_DEPRECATED" "this NVML no longer supports the call"
        "report this with the driver's version";
    27 "NVML_ERROR_NOT_READY" "the system is not ready"
        "wait and check the fabric manager";
    28 "NVML_ERROR_GPU_NOT_FOUND" "there is no GPU"
        "check that the GPU is on the bus: `lspci -d 10de:`";
    29 "NVML_ERROR_INVALID_STATE" "the device is in the wrong state for the call"
        "nothing; the value is unknown";
    30 "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED" "the GPU does not support this kind of reset"
        "reboot instead";
    999 "NVML_ERROR_UNKNOWN" "the driver failed for an unknown reason"
        "check the kernel log; recreate a container, which loses its devices when systemd reloads";
};
