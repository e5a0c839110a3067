//! What several ranks need, on machines in order and on others.

use std::time::{Duration, Instant};

use candle_headroom_environment::{Report, Requirement, Severity, Versions};

use crate::machine::{LIBRARIES, Machine, codes};

/// The codes of a report that are about several ranks.
fn about_ranks(report: &Report) -> Vec<&'static str> {
    let codes = codes(report).into_iter();
    codes
        .filter(|code| ("HR-810".."HR-900").contains(code))
        .collect()
}

fn obstacles(report: &Report) -> Vec<&'static str> {
    let obstacles = report.obstacles(Requirement::Ranks);
    obstacles.iter().map(|finding| finding.code.id).collect()
}

fn seen(report: &Report, code: &str) -> String {
    let mut findings = report.findings().iter();
    let finding = findings.find(|finding| finding.code.id == code);
    finding
        .unwrap_or_else(|| panic!("no {code}\n{report}"))
        .seen
        .clone()
}

#[test]
fn nothing_is_said_where_no_ranks_are_intended() {
    for machine in [
        Machine::plain().with_mpi(),
        Machine::healthy().with_nccl("13.0").with_mpi(),
        // A part of the machine.
        Machine::two_gpus("13.0").variable("CUDA_VISIBLE_DEVICES", "1"),
        // A job of Slurm outside its steps, and ranks of one.
        Machine::healthy().variable("SLURM_NTASKS", "8"),
        Machine::healthy()
            .variable("RANK", "0")
            .variable("WORLD_SIZE", "1"),
        // Ethernet whose card can do RoCE.
        Machine::plain()
            .with_port("mlx5_0", "4: ACTIVE", "25 Gb/sec (1X EDR)")
            .file(
                "/sys/class/infiniband/mlx5_0/ports/1/link_layer",
                "Ethernet\n",
            ),
    ] {
        let report = machine.check();
        assert_eq!(about_ranks(&report), [""; 0], "{report}");
        let report = machine.environment().for_ranks().check();
        assert_ne!(about_ranks(&report), [""; 0], "asked for\n{report}");
    }
}

#[test]
fn a_node_in_order() {
    let report = Machine::two_gpus("12.9")
        .with_mpi()
        .with_port("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)")
        .file("/sys/module/nvidia_peermem/initstate", "live\n")
        .file(
            "/proc/self/limits",
            "Max locked memory  unlimited  unlimited  bytes\n",
        )
        .file("/sys/class/net/eth0/mtu", "1500\n")
        .variable("NCCL_SOCKET_IFNAME", "=eth0,eth1")
        .variable("NCCL_P2P_DISABLE", "0")
        .variable("RANK", "1")
        .variable("WORLD_SIZE", "2")
        .variable("LOCAL_RANK", "1")
        .variable("MASTER_ADDR", "node1")
        .variable("MASTER_PORT", "29500")
        .check();
    assert_eq!(report.worst(), Severity::Ok, "{report}");
    assert_eq!(
        about_ranks(&report),
        ["HR-810", "HR-820", "HR-831", "HR-840"]
    );
    assert_eq!(seen(&report, "HR-810"), "NCCL 2.28.3, built with CUDA 12.9");
    assert!(
        seen(&report, "HR-820").contains("Open MPI 4.1.4"),
        "{report}"
    );
    assert_eq!(seen(&report, "HR-831"), "pairs: 1, by NVLink: 1");
    assert_eq!(obstacles(&report), [""; 0]);
}

/// Root and processes with the capability may lock what they like, and open kernel modules need no further one.
#[test]
fn limits_and_modules_that_do_not_matter() {
    let report = Machine::healthy()
        .with_port("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)")
        .file(
            "/proc/self/limits",
            "Max locked memory  65536  65536  bytes\n",
        )
        .file(
            "/proc/self/status",
            "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n",
        )
        .file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
        )
        .check();
    let codes = about_ranks(&report);
    assert!(
        !codes.contains(&"HR-845") && !codes.contains(&"HR-844"),
        "{report}"
    );
}

/// Several torchruns under srun count nodes and ranks, and mpirun and torchrun may agree.
#[test]
fn launchers_that_go_together() {
    for variables in [
        "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=1 SLURM_PROCID=1 SLURM_NTASKS=2",
        "RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
        "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 PMI_RANK=1 PMI_SIZE=2",
        "SLURM_NTASKS=2",
    ] {
        let variables = variables.split(' ').filter_map(|pair| pair.split_once('='));
        let machine = variables.fold(Machine::two_gpus("13.0"), |machine, (name, value)| {
            machine.variable(name, value)
        });
        let report = machine.check();
        assert!(report.worst() <= Severity::Note, "{report}");
    }
}

#[test]
fn wrong_variables_are_quoted() {
    for (variables, expected) in [
        ("WORLD_SIZE=4", "WORLD_SIZE=4 without RANK"),
        ("RANK=one WORLD_SIZE=4", "RANK=`one` is not a number"),
        ("RANK=-1 WORLD_SIZE=4", "RANK=`-1` is not a number"),
        ("RANK=4 WORLD_SIZE=4", "RANK=4 with WORLD_SIZE=4"),
        ("RANK=0 WORLD_SIZE=0", "RANK=0 with WORLD_SIZE=0"),
        (
            "RANK=0 WORLD_SIZE=2",
            "without MASTER_ADDR; RANK and WORLD_SIZE without MASTER_PORT",
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000",
            "MASTER_PORT=`70000` is not a port",
        ),
        ("PMI_SIZE=2", "PMI_SIZE=2 without PMI_RANK"),
    ] {
        let variables = variables.split(' ').filter_map(|pair| pair.split_once('='));
        let machine = variables.fold(Machine::plain().with_mpi(), |machine, (name, value)| {
            machine.variable(name, value)
        });
        let report = machine.check();
        assert!(
            seen(&report, "HR-850").contains(expected),
            "{expected}\n{report}"
        );
        assert_eq!(obstacles(&report), ["HR-850"], "{report}");
    }
}

#[test]
fn a_group_needs_nccl_or_mpi() {
    let check = |machine: Machine| machine.environment().for_ranks().check();
    let report = check(Machine::plain());
    assert_eq!(obstacles(&report), ["HR-913"]);
    let finding = &report.obstacles(Requirement::Ranks)[0];
    assert_eq!(
        finding.seen,
        "NCCL: this machine has no NVIDIA GPU; MPI: not found"
    );
    assert_eq!(obstacles(&check(Machine::plain().with_mpi())), [""; 0]);
    assert_eq!(
        obstacles(&check(Machine::healthy().with_nccl("13.0"))),
        [""; 0]
    );
    let too_new = Machine::healthy().with_nccl("14.0");
    assert_eq!(obstacles(&check(too_new)), ["HR-913"]);
    assert_eq!("ranks".parse(), Ok(Requirement::Ranks));
    // A build with the engine has nothing to report.
    let has_engine = cfg!(feature = "mpi");
    let codes = about_ranks(&check(Machine::plain().with_mpi()));
    assert_eq!(codes.contains(&"HR-824"), !has_engine, "{codes:?}");
}

#[test]
fn an_nccl_beside_the_library_path_is_named() {
    let folder = "/venv/lib/python3.12/site-packages/nvidia/nccl/lib";
    let report = Machine::healthy()
        .answers("gpus=2")
        .without(&format!("{LIBRARIES}/libnccl.so.2"))
        .file(&format!("{folder}/libnccl.so.2"), "")
        .variable("VIRTUAL_ENV", "/venv")
        .check();
    assert_eq!(
        seen(&report, "HR-811"),
        format!("it is at {folder}/libnccl.so.2")
    );
}

#[test]
fn an_nccl_that_hangs_is_left_behind() {
    let machine = Machine::two_gpus("13.0").answers("hang.ncclGetVersion=1");
    let started = Instant::now();
    let report = machine
        .environment()
        .time_limit(Duration::from_secs(6))
        .check();
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_eq!(seen(&report, "HR-001"), "NCCL", "{report}");
    assert!(
        codes(&report).contains(&"HR-831"),
        "the rest is there\n{report}"
    );
}

/// Files of the kernel and libraries may hold anything.
#[test]
fn damaged_files_are_survived() {
    let report = Machine::two_gpus("x.y")
        .answers("nccl=-7\nstatus.nvmlDeviceGetP2PStatus=3")
        .with_port("mlx5_0", "", "")
        .file("/sys/class/infiniband/none", "")
        .file(
            "/proc/self/limits",
            "Max locked memory\nMax locked memory  many\n",
        )
        .file("/proc/self/status", "Uid:\nCapEff: xyz\n")
        .file("/usr/bin/mpirun", "")
        .variable("NCCL_SOCKET_IFNAME", "^=")
        .variable("LOCAL_RANK", "99999999999999999999")
        .check();
    assert!(!codes(&report).contains(&"HR-002"), "{report}");
    assert_eq!(seen(&report, "HR-810"), "NCCL of an unknown version");
    assert!(
        seen(&report, "HR-842").contains("mlx5_0 port 1"),
        "{report}"
    );
}

fn versions() -> Versions {
    let versions = Machine::two_gpus("13.0").with_mpi().check();
    versions.versions().clone()
}

#[test]
fn versions_are_those_of_the_machine_and_survive_serialization() {
    let versions = versions();
    let text = serde_json::to_string(&versions).unwrap();
    assert_eq!(serde_json::from_str::<Versions>(&text).unwrap(), versions);
    assert_eq!(versions.driver.as_deref(), Some("580.95.05"));
    assert_eq!(versions.cuda.as_deref(), Some("13.0"));
    assert_eq!(versions.nccl.as_deref(), Some("2.28.3"));
    assert_eq!(versions.mpi.as_deref(), Some("libmpi.so.40.30.4"));
    assert_eq!(versions.gpus, ["NVIDIA H200"]);
    // An older rank knows fewer values.
    let older: Versions = serde_json::from_str(r#"{"build": "0.0.1", "more": 1}"#).unwrap();
    assert_eq!(older.driver, None);
}

#[test]
fn what_differs_between_ranks_is_named_with_its_ranks() {
    let all = vec![versions(); 6];
    assert_eq!(Versions::differences(&all), []);
    assert_eq!(Versions::differences(&[]), []);
    let found = |change: fn(&mut Versions)| {
        let mut ranks = all.clone();
        [1, 2, 3, 5]
            .into_iter()
            .for_each(|rank| change(&mut ranks[rank]));
        let found = Versions::differences(&ranks);
        let [finding] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(
            finding.seen.ends_with("ranks 0, 4") || finding.seen.contains("ranks 0, 4; "),
            "{}",
            finding.seen
        );
        assert!(finding.seen.contains("ranks 1 to 3, 5"), "{}", finding.seen);
        finding.code.id
    };
    assert_eq!(found(|rank| rank.build = "0.0.9".to_owned()), "HR-860");
    assert_eq!(
        found(|rank| rank.features.push("other".to_owned())),
        "HR-860"
    );
    assert_eq!(found(|rank| rank.nccl = None), "HR-861");
    assert_eq!(
        found(|rank| rank.mpi = Some("libmpi.so.12".to_owned())),
        "HR-862"
    );
    assert_eq!(
        found(|rank| rank.driver = Some("570.124.06".to_owned())),
        "HR-863"
    );
    assert_eq!(found(|rank| rank.cuda = Some("12.8".to_owned())), "HR-863");
    assert_eq!(
        found(|rank| rank.gpus = vec!["NVIDIA A100".to_owned()]),
        "HR-864"
    );
    let mut report = Machine::plain()
        .with_mpi()
        .environment()
        .for_ranks()
        .check();
    let mut ranks = all[..2].to_vec();
    ranks[1].nccl = Some("2.20.5".to_owned());
    report.extend(Versions::differences(&ranks));
    assert_eq!(obstacles(&report), ["HR-861"]);
    assert!(report.is_fit_for(Requirement::Cpu));
}
