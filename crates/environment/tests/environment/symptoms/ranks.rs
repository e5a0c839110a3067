//! What keeps several ranks from training together, or slows them down.

use super::{Symptom, symptom};
use crate::machine::{LIBRARIES, Machine};

/// Two GPUs and all that ranks on them need, with a variable.
macro_rules! two_gpus_with {
    ($name:expr, $value:expr) => {
        || Machine::two_gpus("13.0").variable($name, $value)
    };
}

fn with_interface(machine: Machine) -> Machine {
    machine
        .file("/sys/class/net/lo/mtu", "65536\n")
        .file("/sys/class/net/eth0/mtu", "1500\n")
}

fn with_infiniband(machine: Machine) -> Machine {
    machine.with_port("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)")
}

pub const SYMPTOMS: &[Symptom] = &[
    symptom("two GPUs without NCCL", "HR-811", || {
        Machine::healthy()
            .answers("gpus=2")
            .without(&format!("{LIBRARIES}/libnccl.so.2"))
    }),
    symptom("a damaged NCCL", "HR-812", || {
        Machine::healthy().answers("gpus=2")
    }),
    symptom("an NCCL that answers with an error", "HR-812", || {
        Machine::two_gpus("13.0").answers("status.ncclGetVersion=3")
    }),
    symptom("NCCL for a CUDA newer than the driver", "HR-813", || {
        Machine::two_gpus("13.0").answers("cuda=12080")
    }),
    symptom(
        "NCCL without direct access",
        "HR-814",
        two_gpus_with!("NCCL_P2P_DISABLE", "1"),
    ),
    symptom(
        "NCCL without direct access, by its level",
        "HR-814",
        two_gpus_with!("NCCL_P2P_LEVEL", "LOC"),
    ),
    symptom("NCCL without InfiniBand that is there", "HR-814", || {
        with_infiniband(Machine::two_gpus("13.0")).variable("NCCL_IB_DISABLE", "1")
    }),
    symptom("NCCL told to use another network", "HR-815", || {
        with_interface(Machine::two_gpus("13.0")).variable("NCCL_SOCKET_IFNAME", "ib,=en")
    }),
    symptom("NCCL told to avoid every network", "HR-815", || {
        with_interface(Machine::two_gpus("13.0")).variable("NCCL_SOCKET_IFNAME", "^lo,eth")
    }),
    symptom("mpirun without its library", "HR-821", || {
        Machine::plain().launched().file("/usr/bin/mpirun", "")
    }),
    symptom("MPI in a module that is not loaded", "HR-821", || {
        Machine::plain()
            .launched()
            .library_in("/usr/lib64/openmpi/lib", "libmpi.so.40", "40.30.4")
    }),
    symptom("MPICH's mpirun, Open MPI's library", "HR-822", || {
        Machine::plain()
            .launched()
            .with_mpi()
            .file("/usr/bin/mpiexec.hydra", "")
            .link("/usr/bin/mpirun", "mpiexec.hydra")
    }),
    symptom("Open MPI as root", "HR-823", || {
        Machine::two_gpus("13.0")
            .with_mpi()
            .file("/proc/self/status", "Name:\tdoctor\nUid:\t0\t0\t0\t0\n")
            .variable("OMPI_ALLOW_RUN_AS_ROOT", "1")
    }),
    symptom("a container's /dev/shm for two GPUs", "HR-830", || {
        Machine::two_gpus("13.0").file(
            "/proc/mounts",
            "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n",
        )
    }),
    symptom(
        "GPUs behind a chipset that separates them",
        "HR-832",
        || Machine::two_gpus("13.0").answers("p2p=1\nnvlink=5"),
    ),
    symptom("one of two ports down", "HR-841", || {
        with_infiniband(Machine::plain()).with_port("mlx5_1", "1: DOWN", "10 Gb/sec (4X SDR)")
    }),
    symptom("a fabric without a subnet manager", "HR-842", || {
        Machine::plain().with_port("mlx5_0", "2: INIT", "400 Gb/sec (4X NDR)")
    }),
    symptom("ports of two rates", "HR-843", || {
        with_infiniband(Machine::plain()).with_port("mlx5_1", "4: ACTIVE", "200 Gb/sec (2X NDR)")
    }),
    symptom("InfiniBand without GPUDirect", "HR-844", || {
        with_infiniband(Machine::healthy())
    }),
    symptom("Linux's usual limit for locked memory", "HR-845", || {
        with_infiniband(Machine::plain()).file(
            "/proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              8388608              bytes     \n",
        )
    }),
    symptom("a rank without a size", "HR-850", || {
        Machine::plain().variable("RANK", "1")
    }),
    symptom("a rank that is too large", "HR-850", || {
        Machine::plain()
            .variable("OMPI_COMM_WORLD_RANK", "4")
            .variable("OMPI_COMM_WORLD_SIZE", "4")
    }),
    symptom("ranks that know no address", "HR-850", || {
        Machine::plain()
            .variable("RANK", "1")
            .variable("WORLD_SIZE", "4")
            .variable("MASTER_PORT", "29500")
    }),
    symptom("two launchers that disagree", "HR-850", || {
        Machine::plain()
            .variable("RANK", "1")
            .variable("WORLD_SIZE", "4")
            .variable("OMPI_COMM_WORLD_RANK", "0")
            .variable("OMPI_COMM_WORLD_SIZE", "2")
    }),
    symptom("more ranks than GPUs", "HR-851", || {
        Machine::two_gpus("13.0")
            .launched()
            .variable("LOCAL_RANK", "2")
    }),
];
