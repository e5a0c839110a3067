//! All that the checker can find, as data: each with a code that stays what it is from version to version.

use std::fmt;

/// How grave a finding is; the order is from harmless to grave.
///
/// ```
/// use candle_headroom::Severity;
///
/// assert!(Severity::Failure > Severity::Warning);
/// assert_eq!(Severity::Note.to_string(), "note");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Looked at, and as it should be.
    Ok,
    /// Good to know; nothing has to be done.
    Note,
    /// It works, but worse than it could, or it is about to fail.
    Warning,
    /// It will not work.
    Failure,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "failure",
        })
    }
}

/// What can be found, apart from what was seen on a machine: docs/environment.md lists all of them.
///
/// ```
/// use candle_headroom::{FindingCode, Severity};
///
/// let mismatch = FindingCode::all().iter().find(|code| code.id == "HR-104").unwrap();
/// assert_eq!(mismatch.severity, Severity::Failure);
/// println!("{}: {}", mismatch.title, mismatch.next_step);
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct FindingCode {
    /// Such as `HR-104`; never given to another meaning.
    pub id: &'static str,
    /// How grave it is.
    pub severity: Severity,
    /// Whether nothing can run on a GPU because of it: on the finding's GPU where it names one, on any otherwise. Such a finding need
    /// not be grave: a machine without a GPU is a fine machine.
    pub prevents_cuda: bool,
    /// What it is, in a few words.
    pub title: &'static str,
    /// What it leads to.
    pub leads_to: &'static str,
    /// What to do about it; empty where nothing has to be done.
    pub next_step: &'static str,
    /// The command that does it or looks further, where there is one; empty otherwise.
    pub command: &'static str,
}

impl FindingCode {
    /// All of them, by their ids.
    pub fn all() -> &'static [&'static FindingCode] {
        ALL
    }
}

/// Declares each code as a static, and [`ALL`].
macro_rules! codes {
    ($($name:ident = $id:literal $severity:ident $prevents:ident $title:literal
        $leads_to:literal $next_step:literal $command:literal;)*) => {
        $(pub(super) static $name: FindingCode = FindingCode {
            id: $id,
            severity: Severity::$severity,
            prevents_cuda: codes!(@ $prevents),
            title: $title,
            leads_to: $leads_to,
            next_step: $next_step,
            command: $command,
        };)*
        static ALL: &[&FindingCode] = &[$(&$name),*];
    };
    (@ no_cuda) => { true };
    (@ runs) => { false };
}

codes! {
    PROBE_TIMED_OUT = "HR-001" Warning runs
        "a probe did not end in time"
        "what it looks at is not known, and a program that makes the same calls may hang as well"
        "look into the kernel log for Xid messages and hung tasks" "sudo dmesg | grep -iE 'xid|hung|nvrm'";
    PROBE_STOPPED = "HR-002" Warning runs
        "a probe stopped before its end"
        "what it looks at is not known"
        "report this with the output of `doctor --redact`" "";

    DRIVER_LOADED = "HR-100" Ok runs "the NVIDIA driver is loaded" "" "" "";
    NO_GPU = "HR-101" Note no_cuda
        "this machine has no NVIDIA GPU"
        "training and inference run on the CPU"
        "nothing, unless there should be a GPU: then look whether it is on the bus" "lspci -d 10de:";
    MODULE_NOT_LOADED = "HR-102" Failure no_cuda
        "there is an NVIDIA GPU, but no driver is loaded for it"
        "CUDA finds no device (100), NVML no driver (9)"
        "install the driver, or load its module" "sudo modprobe nvidia && nvidia-smi";
    NOUVEAU = "HR-103" Failure no_cuda
        "the nouveau driver holds the GPU"
        "NVIDIA's module cannot take it, and CUDA finds no device (100)"
        "put nouveau on the modules' deny list, install NVIDIA's driver, reboot"
        "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/no-nouveau.conf && sudo update-initramfs -u && sudo reboot";
    MODULE_MISMATCH = "HR-104" Failure no_cuda
        "the kernel module and the user libraries are of different versions"
        "every CUDA program fails at its start (803), nvidia-smi too (NVML 18)"
        "reboot, or end all GPU programs and load the module anew; start containers again after that"
        "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia";
    NODES_MISSING = "HR-105" Failure no_cuda
        "device nodes of the driver are missing"
        "CUDA finds no device (100)"
        "have the driver make its nodes" "sudo nvidia-modprobe -c 0 -u";
    UVM_MISSING = "HR-106" Failure no_cuda
        "/dev/nvidia-uvm is missing"
        "CUDA cannot be initialised (100, 101 or 999), while nvidia-smi works"
        "load the module for unified memory; in a container pass the node in" "sudo nvidia-modprobe -u -c 0";
    NODES_DENIED = "HR-107" Failure no_cuda
        "this user cannot open the driver's device nodes"
        "CUDA finds no device (100)"
        "give the user access: often a group such as `video` or `render`, in a container its device rules"
        "ls -l /dev/nvidia* && id";
    WSL = "HR-108" Note runs
        "this is WSL, where the Windows driver does the work"
        "utilisation, processes and some sensors are partly unknown, and a program may take less of the memory than there is"
        "" "";
    WSL_BROKEN = "HR-109" Failure no_cuda
        "WSL is not set up for CUDA"
        "CUDA finds no device (100), or loads a libcuda that cannot work there"
        "install the driver in Windows alone, and no Linux driver inside WSL; then restart WSL"
        "wsl.exe --update && wsl.exe --shutdown";
    XID_HARDWARE = "HR-110" Warning runs
        "the kernel log holds a message about the GPU that calls for action"
        "the GPU may fail, or hang, until that is done"
        "do what the message calls for, unless it has been done since" "";
    XID_APPLICATION = "HR-111" Note runs
        "the kernel log holds a message about a program's fault on the GPU"
        "that program ended; the GPU goes on"
        "run it under compute-sanitizer, should it be yours" "compute-sanitizer --tool memcheck PROGRAM";
    XID_OTHER = "HR-112" Note runs
        "the kernel log holds a message about the GPU that asks for nothing at once, or is not known here"
        "" "look it up in NVIDIA's catalog of Xid messages, should there be trouble" "";
    LOG_UNREADABLE = "HR-113" Note runs
        "the kernel log cannot be read"
        "earlier trouble of the GPU (Xid messages) is not known"
        "read it as root" "sudo dmesg | grep -i xid";
    LOG_CLEAN = "HR-114" Ok runs "the kernel log has no message about a GPU" "" "" "";
    CONTAINER_WITHOUT_RUNTIME = "HR-115" Failure no_cuda
        "this container was started without NVIDIA's runtime"
        "the host has a GPU, but neither its nodes nor the driver's libraries are in here: CUDA finds no device (100)"
        "install nvidia-container-toolkit on the host, and start the container with its GPUs" "docker run --gpus all …";
    CONTAINER = "HR-116" Note runs
        "this is a container"
        "NVML shows processes by the host's numbers, so they are not matched with those in here" "" "";
    CONTAINER_LOST_DEVICES = "HR-117" Failure no_cuda
        "the driver answers «unknown error» inside a container"
        "a reload of systemd on the host takes the GPU away from running containers: NVML and CUDA fail (999)"
        "create the container anew; to keep it from coming back pass the nodes in by `--device`, or have docker use cgroupfs"
        "docker run --gpus all --device /dev/nvidiactl --device /dev/nvidia-uvm --device /dev/nvidia0 …";
    PASSED_THROUGH = "HR-118" Note no_cuda
        "the GPU is set aside for virtual machines"
        "programs on the host cannot use it: training and inference run on the CPU"
        "nothing, unless the host should use it: then take it off vfio-pci, and load the driver" "lspci -k -d 10de:";

    GPU = "HR-200" Ok runs "model and state" "" "" "";
    NVML_MISSING = "HR-201" Warning runs
        "NVML cannot be loaded"
        "the GPU's memory, health and neighbours are not known"
        "install the driver's user libraries, of the kernel module's version" "ldconfig -p | grep libnvidia-ml";
    NVML_FAILS = "HR-202" Warning runs
        "NVML answers with an error"
        "what was asked is not known" "" "nvidia-smi";
    GPU_LOST = "HR-203" Failure no_cuda
        "the GPU is lost to the system, or needs a reset"
        "every call on it fails"
        "reset it, or reboot; if it comes back, check power, cooling and seating" "sudo nvidia-smi --gpu-reset -i N";
    MIG = "HR-204" Note runs
        "the GPU is divided (MIG)"
        "a program sees one instance and its memory; memory by process may be unknown"
        "name the instance that is meant in CUDA_VISIBLE_DEVICES" "nvidia-smi -L";
    PERSISTENCE_OFF = "HR-205" Note runs
        "persistence mode is off"
        "the driver unloads between programs: each start takes seconds longer, and settings are lost"
        "switch it on" "sudo nvidia-smi -pm 1";
    COMPUTE_EXCLUSIVE = "HR-206" Note runs
        "the compute mode lets one process alone use the GPU"
        "a second program fails at its start (46)"
        "leave it, or let several in" "sudo nvidia-smi -c DEFAULT";
    COMPUTE_PROHIBITED = "HR-207" Failure no_cuda
        "the compute mode forbids computing"
        "CUDA passes this GPU over (100 or 46)"
        "allow it" "sudo nvidia-smi -c DEFAULT";
    ECC_ERRORS = "HR-208" Failure no_cuda
        "the GPU has had uncorrectable memory errors since the driver was loaded"
        "results may be wrong, and programs end with 214"
        "end all programs on it and reset it; if it comes back, have it replaced" "sudo nvidia-smi --gpu-reset -i N";
    ECC_HISTORY = "HR-209" Note runs
        "the GPU has had uncorrectable memory errors in its life"
        "" "watch it" "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT";
    REPAIR_PENDING = "HR-210" Warning runs
        "bad memory waits to be taken out of use at the next reset"
        "errors there come back until then"
        "reset the GPU when it is free" "sudo nvidia-smi --gpu-reset -i N";
    REMAP_FAILED = "HR-211" Failure no_cuda
        "bad memory could not be taken out of use: the spare rows are used up"
        "errors come back, and results may be wrong"
        "have the GPU replaced" "nvidia-smi -q -d ROW_REMAPPER";
    ECC_OFF = "HR-212" Note runs
        "memory errors are not corrected (ECC is off), or that changes at the next reset"
        "a flipped bit changes results in silence"
        "switch ECC on where results matter; it takes some memory on GPUs without HBM" "sudo nvidia-smi -e 1";
    HOT = "HR-213" Warning runs
        "the GPU is hot"
        "its clocks go down, and with them the speed"
        "check fans, airflow and dust" "nvidia-smi -q -d TEMPERATURE";
    CLOCKS_HARDWARE = "HR-214" Warning runs
        "the hardware holds the GPU's clocks down"
        "it runs at a fraction of its speed"
        "check power supply, its cables and cooling" "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE";
    CLOCKS_SOFTWARE = "HR-215" Warning runs
        "the driver holds the GPU's clocks down because of its temperature"
        "it runs below its speed"
        "check fans, airflow and dust" "nvidia-smi -q -d PERFORMANCE,TEMPERATURE";
    CLOCKS_OTHER = "HR-216" Note runs
        "the GPU's clocks are below their maximum"
        "under load a power limit is usual" "" "nvidia-smi -q -d PERFORMANCE";
    PCIE_NARROW = "HR-217" Note runs
        "the GPU's link to the host is narrower or slower than it could be"
        "copies to and from the GPU take longer; an idle GPU lowers its link by itself"
        "look again under load; if it stays, check the slot and the riser" "nvidia-smi -q -d PCIE";
    NEIGHBOUR = "HR-218" Warning runs
        "most of the GPU's memory is in use"
        "programs run out of memory (2) sooner than they would"
        "end what is not needed, or set a limit (`DeviceMemory::cuda(0).limit(…)`)"
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv";
    MEMORY_UNKNOWN = "HR-219" Note runs
        "NVML does not tell the GPU's memory"
        "on GPUs that share the host's memory, that is what counts; elsewhere it is not known what is free" "" "";
    FIELDS_UNKNOWN = "HR-220" Note runs
        "NVML does not tell everything about the GPU"
        "what it does not tell was not judged" "" "";
    PROCESSES_WRONG = "HR-221" Note runs
        "this driver reports memory by process wrongly"
        "who holds memory on the GPU cannot be told"
        "update the driver: 535.43 to 535.97 are affected" "";
    INFOROM = "HR-222" Warning runs
        "the GPU's infoROM is corrupt"
        "its records of errors and its settings cannot be trusted"
        "update or re-flash the firmware with the vendor's help" "nvidia-smi -q";
    POWER_CABLES = "HR-223" Failure no_cuda
        "the GPU lacks power" "it does not start, or runs at its slowest"
        "attach its auxiliary power" "";

    GRAPHICS = "HR-224" Note runs
        "the GPU serves a display or other graphics"
        "that takes some of its memory and time; a kernel that runs for seconds may be ended (702)"
        "compute on another GPU where there is one" "nvidia-smi";
    PCIE_REPLAYS = "HR-225" Note runs
        "the GPU's link to the host has had to repeat transfers"
        "a few are harmless; many mean a bad contact, and slow copies"
        "look again later: if it grows, check the slot and the riser" "nvidia-smi -q -d PCIE";
    MANY_RETIRED = "HR-226" Warning runs
        "so many pages of the GPU's memory are retired that it counts as worn out"
        "errors become more likely"
        "have the GPU replaced" "nvidia-smi -q -d PAGE_RETIREMENT";

    CUDA_STARTS = "HR-300" Ok runs "CUDA starts" "" "" "";
    LIBCUDA_MISSING = "HR-301" Failure no_cuda
        "libcuda cannot be loaded"
        "a program built with candle's feature `cuda` does not start: the loader ends it (127)"
        "install the driver's user libraries, of the kernel module's version; in a container start it with `--gpus all`"
        "ldconfig -p | grep libcuda.so";
    STUB = "HR-302" Failure no_cuda
        "the stub of libcuda is loaded instead of the driver's"
        "every CUDA call fails (34)"
        "take the toolkit's `stubs` folder off LD_LIBRARY_PATH" "echo $LD_LIBRARY_PATH";
    NO_DEVICE = "HR-303" Failure no_cuda
        "CUDA finds no device"
        "creating a candle device fails (100 or 101)"
        "check CUDA_VISIBLE_DEVICES and /dev/nvidia*; in a container, that it was started with `--gpus all`"
        "ls -l /dev/nvidia*; echo $CUDA_VISIBLE_DEVICES";
    COMPAT = "HR-304" Failure no_cuda
        "the forward-compatibility libcuda (cuda-compat) does not serve this GPU"
        "every CUDA call fails (804)"
        "take the folder `compat` off the library path, so that the driver's own libcuda is loaded"
        "ldconfig -p | grep libcuda.so; echo $LD_LIBRARY_PATH";
    FABRIC = "HR-305" Failure no_cuda
        "the NVSwitch or NVLink fabric is not ready"
        "CUDA cannot be initialised (802 or 919)"
        "start the fabric manager, of the driver's version" "sudo systemctl restart nvidia-fabricmanager";
    MPS = "HR-306" Failure no_cuda
        "the MPS server does not serve this process"
        "CUDA cannot be initialised (805 to 809)"
        "look into its log, and restart it" "echo quit | sudo nvidia-cuda-mps-control; sudo nvidia-cuda-mps-control -d";
    CUDA_FAILS = "HR-307" Failure no_cuda
        "CUDA cannot be initialised"
        "creating a candle device fails" "" "nvidia-smi";
    PTX_TOO_NEW = "HR-308" Failure no_cuda
        "the kernels' PTX is newer than the driver"
        "the first kernel fails to load (222); that the libraries start says nothing, since compatibility within a major version leaves PTX out"
        "update the driver, or build with a toolkit no newer than it" "nvcc --version && nvidia-smi";
    PTX_WRONG_TARGET = "HR-309" Failure no_cuda
        "the kernels are compiled for another kind of GPU"
        "the first kernel fails to load (209 or 218)"
        "build with the GPU's compute capability" "CUDA_COMPUTE_CAP=NN cargo build --features cuda";
    PTX_UNKNOWN = "HR-310" Note runs
        "kernels whose version of PTX is not known here"
        "whether the driver can load them is not known" "" "";
    MACHINE_CODE = "HR-311" Warning runs
        "candle's mixture-of-experts kernels are machine code for an older kind of GPU"
        "they fail here (209), while all others, which are PTX, work"
        "build with the GPU's compute capability" "CUDA_COMPUTE_CAP=NN cargo build --features cuda";
    KERNELS_FIT = "HR-312" Ok runs "the kernels fit driver and GPU" "" "" "";
    DRIVER_TOO_OLD = "HR-313" Failure no_cuda
        "the driver is older than the CUDA libraries need"
        "they refuse to start (35)"
        "update the driver, or use libraries of an older CUDA" "nvidia-smi";
    OLD_POOLS = "HR-314" Note runs
        "the driver is older than CUDA 12.2"
        "limits on a GPU's memory are soft: pools have no greatest size"
        "update the driver, should limits matter" "";

    OLD_GPU = "HR-315" Note runs
        "a GPU of a compute capability below 8.0"
        "candle's kernels leave bf16 out there"
        "use f16 or f32" "";

    LIBRARIES_FOUND = "HR-400" Ok runs "CUDA's libraries are found" "" "" "";
    LIBRARIES_MISSING = "HR-401" Note no_cuda
        "libraries that candle's feature `cuda` links against are not on the library path"
        "a program built with it does not start: the loader ends it before `main` (127)"
        "install the CUDA runtime, or put its folder on LD_LIBRARY_PATH" "ldconfig -p | grep -E 'cudart|cublas|curand|nvrtc'";
    LIBRARIES_NOT_NEEDED = "HR-402" Ok runs "CUDA's libraries are not needed on this machine" "" "" "";
    LIBRARY_TWICE = "HR-403" Warning runs
        "a library is on the path in two versions"
        "the first on the path is used, which may not be the one that is meant"
        "take one folder off the path" "echo $LD_LIBRARY_PATH";
    LIBRARIES_MIXED = "HR-404" Warning runs
        "the CUDA libraries found are of different major versions"
        "a program linked against one of them does not start where another is missing"
        "install all of one CUDA" "ldconfig -p | grep -E 'cudart|cublas|nvrtc'";
    STUBS_ON_PATH = "HR-405" Warning runs
        "a `stubs` folder is on the library path"
        "the stub of libcuda may be loaded instead of the driver's (34)"
        "take it off LD_LIBRARY_PATH: it is meant for LIBRARY_PATH, at linking" "echo $LD_LIBRARY_PATH";
    JIT_MISSING = "HR-406" Warning runs
        "the driver's compiler library libnvidia-ptxjitcompiler is not on the library path"
        "candle's kernels are PTX: without it they do not load (221)"
        "install the driver in full; in a container add `compute` to NVIDIA_DRIVER_CAPABILITIES"
        "ldconfig -p | grep ptxjitcompiler";
    OPTIONAL_MISSING = "HR-407" Note runs
        "libraries of candle's other features are not on the library path"
        "only programs built with `cudnn` or `nccl` need them" "" "";
    COMPAT_ON_PATH = "HR-408" Note runs
        "a forward-compatibility libcuda (cuda-compat) is on the library path"
        "it works on data-centre GPUs alone; on others every CUDA call fails (804)"
        "take the folder off the path on other GPUs" "echo $LD_LIBRARY_PATH";
    CUDNN_TOO_NEW = "HR-409" Warning runs
        "the driver is older than this cuDNN needs"
        "programs built with candle's feature `cudnn` may fail"
        "update the driver" "nvidia-smi";

    PATH_NOWHERE = "HR-410" Note runs
        "LD_LIBRARY_PATH names a folder that does not exist"
        "libraries that are meant to be there are looked for elsewhere"
        "correct it" "echo $LD_LIBRARY_PATH";

    TOOLKIT = "HR-500" Ok runs "the CUDA toolkit is found" "" "" "";
    NO_TOOLKIT = "HR-501" Note runs
        "there is no CUDA toolkit (nvcc)"
        "programs with candle's feature `cuda` cannot be built here; running them needs none"
        "install it where building is meant" "";
    TOOLKITS_DISAGREE = "HR-502" Warning runs
        "the toolkit's variables and PATH name different toolkits"
        "kernels may be compiled by another CUDA than the program is linked with"
        "let CUDA_HOME, CUDA_PATH, CUDA_ROOT and PATH name one toolkit" "which nvcc; env | grep ^CUDA_";
    TOOLKIT_NOWHERE = "HR-503" Warning runs
        "a toolkit variable names a folder that does not exist"
        "builds with candle's feature `cuda` fail or take another toolkit"
        "correct it, or unset it" "env | grep ^CUDA_";
    TOOLKIT_TOO_NEW = "HR-504" Warning runs
        "the toolkit is newer than the driver"
        "kernels built here do not load here (222)"
        "update the driver, or build with a toolkit no newer than it" "nvcc --version && nvidia-smi";
    COMPUTE_CAP = "HR-505" Warning runs
        "CUDA_COMPUTE_CAP does not go with a GPU of this machine"
        "kernels built with it do not load there (209 or 218)"
        "set it to the GPU's compute capability, or unset it" "nvidia-smi --query-gpu=compute_cap --format=csv";
    NO_COMPILER = "HR-506" Note runs
        "there is a CUDA toolkit, but no C++ compiler for nvcc to work with"
        "programs with candle's feature `cuda` cannot be built here"
        "install one" "sudo apt-get install g++";

    VARIABLES_FINE = "HR-600" Ok runs "no variable stands in the way" "" "" "";
    HIDES_ALL = "HR-601" Failure no_cuda
        "CUDA_VISIBLE_DEVICES hides every GPU"
        "CUDA finds no device (100)"
        "unset it, or name a GPU that exists" "unset CUDA_VISIBLE_DEVICES";
    HIDES_REST = "HR-602" Warning runs
        "CUDA_VISIBLE_DEVICES names a GPU that does not exist"
        "it and all that are named after it stay hidden"
        "name GPUs that exist: by number from 0, or by the beginning of a UUID" "nvidia-smi -L";
    NAMED_TWICE = "HR-603" Failure no_cuda
        "CUDA_VISIBLE_DEVICES names a GPU twice"
        "CUDA then shows none at all (100)"
        "name each once" "echo $CUDA_VISIBLE_DEVICES";
    LAUNCH_BLOCKING = "HR-604" Warning runs
        "CUDA_LAUNCH_BLOCKING is set"
        "every kernel is waited for: training is several times slower"
        "unset it, unless a fault is being looked for" "unset CUDA_LAUNCH_BLOCKING";
    DEBUGGING = "HR-605" Warning runs
        "a variable is left over from debugging or profiling"
        "runs are slower, or wait for a debugger"
        "unset it" "";
    JIT_DISABLED = "HR-606" Failure no_cuda
        "compiling PTX is switched off"
        "candle's kernels are PTX: none loads (223)"
        "unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT" "unset CUDA_DISABLE_PTX_JIT CUDA_DISABLE_JIT";
    CACHE_DISABLED = "HR-607" Note runs
        "the cache of compiled kernels is switched off"
        "each start compiles candle's kernels anew, which takes seconds"
        "unset CUDA_CACHE_DISABLE" "unset CUDA_CACHE_DISABLE";
    CONTAINER_HIDES = "HR-608" Failure no_cuda
        "NVIDIA_VISIBLE_DEVICES tells the container runtime to pass no GPU in"
        "CUDA finds no device (100)"
        "start the container with `--gpus all`, or set it to `all`" "docker run --gpus all …";
    CONTAINER_CAPABILITIES = "HR-609" Failure no_cuda
        "NVIDIA_DRIVER_CAPABILITIES lets no compute libraries into the container"
        "libcuda is missing in the container"
        "add `compute,utility`" "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …";
    DEVICE_ORDER = "HR-610" Note runs
        "CUDA and nvidia-smi may number the GPUs differently"
        "the ordinal 0 of CUDA, the fastest GPU, need not be the 0 of nvidia-smi, which goes by PCI address"
        "number them alike" "export CUDA_DEVICE_ORDER=PCI_BUS_ID";
    MPS_LIMITS = "HR-611" Note runs
        "variables of MPS limit this process"
        "it gets a part of the GPU's processors or memory"
        "unset them, if that is not meant" "env | grep CUDA_MPS";

    HOST = "HR-700" Ok runs "the host" "" "" "";
    CGROUP_LIMIT = "HR-701" Note runs
        "a control group limits this process's memory"
        "above it the process is killed, whatever the machine has left"
        "set a limit below it: `DeviceMemory::host().limit(Limit::Auto)` does" "";
    LOW_MEMORY = "HR-702" Warning runs
        "little host memory is left"
        "loading and training may be killed"
        "end what is not needed" "free -h";
    SWAPPING = "HR-703" Warning runs
        "much of the swap is in use"
        "what is swapped out comes back slowly: steps on the CPU take many times longer"
        "end what is not needed" "free -h";
    SHM_SMALL = "HR-704" Note runs
        "/dev/shm is small"
        "candle alone does not use it; NCCL and programs that share tensors between processes fail when it is full"
        "start the container with more" "docker run --shm-size=8g …";
    HOST_UNKNOWN = "HR-705" Note runs
        "the host's memory cannot be read"
        "whether there is enough is not known" "" "";

    BUILT = "HR-800" Ok runs "this build" "" "" "";

    SMOKE_PASSED = "HR-900" Ok runs "real work on the device gave the right results" "" "" "";
    SMOKE_FAILED = "HR-901" Failure no_cuda
        "real work on the device failed"
        "so will training" "" "";
    SMOKE_WRONG = "HR-902" Failure no_cuda
        "real work on the device gave wrong results"
        "models learn nothing, or nonsense: memory, driver or kernels are broken"
        "check the GPU's health, and build again from a clean target folder" "nvidia-smi -q -d ECC";

    NOT_ENOUGH_MEMORY = "HR-910" Failure no_cuda
        "no GPU has as much free memory as is required"
        "the program will run out of memory (2)"
        "free memory, ask for less, or train in smaller micro-batches (`AdaptiveTrainer`)" "nvidia-smi";
    MEMORY_NOT_TOLD = "HR-911" Failure no_cuda
        "how much memory is free on the GPU is not known"
        "whether the program fits cannot be told"
        "see the findings on NVML" "";
    NO_USABLE_GPU = "HR-912" Failure no_cuda
        "no GPU was found that CUDA can use"
        "creating a candle device fails"
        "see the other findings" "";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_well_formed_and_in_order() {
        assert!(ALL.windows(2).all(|pair| pair[0].id < pair[1].id));
        for code in ALL {
            let number = code.id.strip_prefix("HR-").unwrap();
            assert!(number.len() == 3 && number.parse::<u16>().is_ok());
            assert!(!code.title.is_empty() && !code.title.ends_with('.'));
            let is_told = !code.leads_to.is_empty() && !code.next_step.is_empty();
            let has_texts_elsewhere = ["HR-202", "HR-307", "HR-901"].contains(&code.id);
            assert!(
                code.severity < Severity::Warning || is_told || has_texts_elsewhere,
                "{}",
                code.id
            );
        }
    }
}
