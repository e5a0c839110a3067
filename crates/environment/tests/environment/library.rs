//! NVML and libcuda that fail, lack functions, or never return. See hanging.rs for libraries that hang while they are loaded.

use std::time::{Duration, Instant};

use candle_headroom_environment::{Requirement, Severity};

use crate::machine::{Machine, codes};

/// Every function of NVML that is called.
const FUNCTIONS: [&str; 34] = [
    "nvmlInit_v2",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceValidateInforom",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeMode",
];

/// Functions whose failure need not be reported: there is another one to fall back on, or nothing depends on it.
const UNREPORTED: [&str; 6] = [
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrentClocksEventReasons",
];

#[test]
fn every_error_from_every_function_is_reported_or_survived() {
    let healthy = codes(&Machine::healthy().check());
    // Most of a check is waiting for its threads.
    std::thread::scope(|scope| {
        for functions in FUNCTIONS.chunks(5) {
            scope.spawn(|| every_error_from(functions, &healthy));
        }
    });
}

fn every_error_from(functions: &[&str], healthy: &[&str]) {
    let machine = Machine::healthy();
    for code in (1..=30).chain([999, 4242]) {
        for function in functions {
            machine.set(&format!("status.{function}={code}"));
            let report = machine.check();
            machine.set(&format!("status.{function}=0"));
            let is_reported = codes(&report) != healthy;
            // A list that does not fit is requested again with more room, and an older call replaces a missing one.
            let goes_on = match *function {
                "nvmlDeviceGetComputeRunningProcesses_v3"
                | "nvmlDeviceGetGraphicsRunningProcesses_v3" => matches!(code, 7 | 13),
                // A GPU repairs its memory in one of two ways.
                "nvmlDeviceGetRetiredPages"
                | "nvmlDeviceGetRetiredPagesPendingStatus"
                | "nvmlDeviceGetRemappedRows" => [3, 4, 6, 7, 13, 21, 25, 26, 29].contains(&code),
                _ => UNREPORTED.contains(function),
            };
            assert!(is_reported || goes_on, "{function} {code}\n{report}");
            // The number is in the report, unless a finding of its own explains it.
            let has_own = matches!((*function, code), ("nvmlInit_v2", 9 | 18));
            if is_reported && !has_own {
                assert!(
                    report.to_string().contains(&code.to_string()),
                    "{function} {code}\n{report}"
                );
            }
        }
    }
}

#[test]
fn all_functions_may_fail_at_once() {
    for code in (1..=30).chain([999, 4242]) {
        let report = Machine::healthy().answers(&format!("status={code}\nstatus.nvmlInit_v2=0\nstatus.nvmlDeviceGetCount_v2=0\nstatus.nvmlDeviceGetHandleByIndex_v2=0")).check();
        assert!(
            codes(&report).iter().any(|code| code.starts_with("HR-2")),
            "{report}"
        );
    }
}

/// NVML has started, so that the versions of unused files do not matter.
#[test]
fn the_driver_is_known_although_its_gpus_cannot_be_counted() {
    let report = Machine::healthy()
        .with_module("580.82.07")
        .answers("status.nvmlDeviceGetCount_v2=23\nstatus.cuInit=304")
        .check();
    let text = report.to_string();
    assert!(!codes(&report).contains(&"HR-104"), "{text}");
    assert!(text.contains("nvmlDeviceGetCount returns 23"), "{text}");
    assert!(text.contains("580.95.05"), "{text}");
}

#[test]
fn an_old_library_is_asked_by_older_calls() {
    let machine = Machine::healthy()
        .with_old_driver_libraries("580.95.05")
        .answers("processes=4711:139000000000\nmemory.used=140000000000\nclocks=4");
    let report = machine.check();
    let codes = codes(&report);
    assert!(
        codes.contains(&"HR-218") && codes.contains(&"HR-216"),
        "{report}"
    );
    assert!(
        report.to_string().contains("process 4711 holds 129.5 GiB"),
        "{report}"
    );
    assert_eq!(report.gpus()[0].memory_total, Some(141 << 30));
}

#[test]
fn a_gpu_that_remaps_rows_need_not_retire_pages() {
    let no_pages =
        "status.nvmlDeviceGetRetiredPages=3\nstatus.nvmlDeviceGetRetiredPagesPendingStatus=3";
    let machine = Machine::healthy().answers(no_pages);
    assert!(!codes(&machine.check()).contains(&"HR-220"));
    machine.set("status.nvmlDeviceGetRemappedRows=3");
    let report = machine.check();
    assert!(report.to_string().contains("remapped rows (3)"), "{report}");
}

#[test]
fn processes_without_sizes_and_counts_that_lie() {
    let report = Machine::healthy()
        .answers("memory.used=140000000000\nprocesses=1:,2:5")
        .check();
    assert!(
        report
            .to_string()
            .contains("process 1 holds an unknown part"),
        "{report}"
    );
    for lie in ["0", "4000000000"] {
        let lines = format!("memory.used=140000000000\nprocesses=1:5\nprocesses.count={lie}");
        assert!(codes(&Machine::healthy().answers(&lines).check()).contains(&"HR-218"));
    }
    let report = Machine::healthy()
        .answers("gpus=4294967295\ndevices=-1")
        .check();
    assert_eq!(report.gpus().len(), 1024);
}

/// Drivers 535.43 to 535.97 write elements of 32 bytes where their header says 24.
#[test]
fn elements_longer_than_their_header_says() {
    let processes: Vec<_> = (1..=300).map(|pid| format!("{pid}:450000000")).collect();
    let lines = format!(
        "memory.used=140000000000\nelement.words=4\ngraphics=1:5\nprocesses={}",
        processes.join(",")
    );
    let report = Machine::healthy()
        .answers(&format!("{lines}\ndriver=535.86.10"))
        .check();
    let text = report.to_string();
    assert!(codes(&report).contains(&"HR-221"), "{text}");
    let mut findings = report.findings().iter();
    let neighbour = findings
        .find(|finding| finding.code.id == "HR-218")
        .unwrap();
    assert!(
        neighbour.seen.contains("process 8 holds 429.2 MiB"),
        "by the call before the newest: {text}"
    );
    // A driver that does the same unannounced finds room for what it writes.
    assert!(codes(&Machine::healthy().answers(&lines).check()).contains(&"HR-218"));
}

#[test]
fn a_time_limit_beyond_the_clock_is_none() {
    let report = Machine::plain()
        .environment()
        .time_limit(Duration::MAX)
        .check();
    assert!(codes(&report).contains(&"HR-101"), "{report}");
}

#[test]
fn a_library_that_hangs_is_left_behind() {
    for function in [
        "nvmlInit_v2",
        "nvmlDeviceGetTemperature",
        "cuInit",
        "cuDriverGetVersion",
    ] {
        let machine = Machine::healthy().answers(&format!("hang.{function}=1"));
        let started = Instant::now();
        let report = machine
            .environment()
            .time_limit(Duration::from_secs(2))
            .check();
        assert!(started.elapsed() < Duration::from_secs(20), "{function}");
        assert!(codes(&report).contains(&"HR-001"), "{function}\n{report}");
        assert!(report.worst() >= Severity::Warning);
        // The results of other probes are reported.
        assert!(codes(&report).contains(&"HR-700"), "{report}");
        if function == "cuInit" {
            assert!(
                !report.is_fit_for(Requirement::CudaInference),
                "that CUDA starts was not seen"
            );
        }
    }
}

#[test]
fn files_that_are_no_libraries() {
    let folder = crate::machine::LIBRARIES;
    for text in [&b""[..], b"\x7fELF\x02\x01\x01", &[0xff; 4096]] {
        let machine = Machine::healthy()
            .without(&format!("{folder}/libcuda.so.1"))
            .without(&format!("{folder}/libnvidia-ml.so.1"))
            .file(&format!("{folder}/libcuda.so.1"), text)
            .file(&format!("{folder}/libnvidia-ml.so.1"), text);
        let codes = codes(&machine.check());
        assert!(codes.contains(&"HR-201") && codes.contains(&"HR-301"));
    }
}
