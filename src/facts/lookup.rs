use super::entries::{ClockReason, Status, Weight, XidAction};
use super::statuses::{CUDA, NVML};
use super::tables::{
    CLOCK_REASONS, DRIVERS, MINOR_VERSION_FLOORS, PTX_ISA, WRONG_PROCESSES, XID, XID_BY_TEXT,
};
use super::version::Version;

/// A status of the CUDA driver.
pub(crate) const fn cuda(number: u32) -> Option<&'static Status> {
    find(CUDA, number)
}

/// A return code of NVML.
pub(crate) const fn nvml(number: u32) -> Option<&'static Status> {
    find(NVML, number)
}

/// `const`, so that other tables can take their texts from this one at compile time.
const fn find(table: &'static [Status], number: u32) -> Option<&'static Status> {
    let mut index = 0;
    while index < table.len() {
        if table[index].number == number {
            return Some(&table[index]);
        }
        index += 1;
    }
    None
}

/// The action for an Xid. For Xid 154 the message's text names it.
pub(crate) fn xid(number: u32, text: &str) -> Option<XidAction> {
    let listed = XID.iter().find(|(numbers, _)| numbers.contains(&number));
    match listed.map(|(_, action)| *action) {
        Some(XidAction::SaidInText) => XID_BY_TEXT
            .iter()
            .find(|(phrase, _)| text.contains(phrase))
            .map(|(_, action)| *action)
            .or(Some(XidAction::SaidInText)),
        action => action,
    }
}

/// The listed reasons among `bits`, and the bits that are not listed.
pub(crate) fn clock_reasons(bits: u64) -> (Vec<&'static ClockReason>, u64) {
    let known: Vec<_> = CLOCK_REASONS
        .iter()
        .filter(|reason| bits & reason.bit != 0)
        .collect();
    let unknown = known.iter().fold(bits, |left, reason| left & !reason.bit);
    (known, unknown)
}

/// The greatest weight of the listed reasons among `bits`. Allocates nothing.
pub(crate) fn worst_clock_reason(bits: u64) -> Option<Weight> {
    let set = CLOCK_REASONS.iter().filter(|reason| bits & reason.bit != 0);
    set.map(|reason| reason.weight).max()
}

/// The first CUDA release whose driver loads PTX of this version.
pub(crate) fn cuda_of_ptx(ptx: Version) -> Option<Version> {
    PTX_ISA
        .iter()
        .find(|(isa, _)| *isa == ptx)
        .map(|(_, cuda)| *cuda)
}

/// The driver packaged with a CUDA release. Older drivers do not load PTX made by that release's compiler.
pub(crate) fn driver_of_cuda(cuda: Version) -> Option<Version> {
    let releases = DRIVERS.iter().filter(|driver| driver.cuda == cuda);
    releases.map(|driver| driver.linux).min()
}

/// The oldest driver on which libraries of this major CUDA version start.
pub(crate) fn floor_of_major(major: u32) -> Option<Version> {
    MINOR_VERSION_FLOORS
        .iter()
        .find(|(listed, _)| *listed == major)
        .map(|(_, floor)| *floor)
}

/// Whether this driver's newest calls for a GPU's processes are unreliable.
pub(crate) fn reports_processes_wrongly(driver: Version) -> bool {
    driver >= WRONG_PROCESSES.0 && driver < WRONG_PROCESSES.1
}

#[cfg(test)]
mod tests {
    use super::super::tables::{CUDNN_FLOORS, DEBUGGING_VARIABLES};
    use super::*;

    fn assert_distinct(table: &'static [Status]) {
        for status in table {
            assert_eq!(find(table, status.number), Some(status), "listed twice");
            assert!(!status.cause.is_empty() && !status.remedy.is_empty());
            assert!(!status.cause.ends_with('.') && !status.remedy.ends_with('.'));
        }
    }

    #[test]
    fn every_status_is_found_by_its_number() {
        assert_distinct(CUDA);
        assert_distinct(NVML);
        assert_eq!(
            cuda(222).unwrap().name,
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
        );
        assert_eq!(nvml(18).unwrap().name, "NVML_ERROR_LIB_RM_VERSION_MISMATCH");
        for unknown in [0, 4242, u32::MAX] {
            assert_eq!((cuda(unknown), nvml(unknown)), (None, None));
        }
    }

    #[test]
    fn every_xid_has_one_action() {
        let mut numbers: Vec<_> = XID.iter().flat_map(|(numbers, _)| *numbers).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
        for (listed, action) in XID {
            for number in *listed {
                assert_eq!(xid(*number, ""), Some(*action), "{number}");
            }
        }
        assert_eq!(xid(9_999, "Reset"), None);
    }

    #[test]
    fn the_text_of_xid_154_names_the_action() {
        for (text, action) in [
            (
                "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                XidAction::ResetGpu,
            ),
            ("… to 0x2 (Node Reboot Required)", XidAction::Reboot),
            ("… to 0x4 (Drain and Reset)", XidAction::ResetGpu),
            ("… to 0x3 (Drain P2P)", XidAction::CheckNvlink),
            ("… to 0x0 (None)", XidAction::Ignore),
            ("something new", XidAction::SaidInText),
        ] {
            assert_eq!(xid(154, text), Some(action), "{text}");
        }
    }

    #[test]
    fn every_clock_bit_is_known_and_others_are_kept() {
        for reason in CLOCK_REASONS {
            let (known, unknown) = clock_reasons(reason.bit);
            assert_eq!((known, unknown), (vec![reason], 0));
            assert_eq!(reason.bit.count_ones(), 1);
        }
        let all = CLOCK_REASONS.iter().map(|reason| reason.bit).sum::<u64>();
        let (known, unknown) = clock_reasons(u64::MAX);
        assert_eq!((known.len(), unknown), (CLOCK_REASONS.len(), !all));
        assert_eq!(clock_reasons(0), (Vec::new(), 0));
    }

    #[test]
    fn tables_of_versions_are_ordered() {
        assert!(
            PTX_ISA
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1)
        );
        assert!(
            DRIVERS
                .windows(2)
                .all(|pair| pair[0].cuda >= pair[1].cuda && pair[0].linux > pair[1].linux)
        );
        for (isa, cuda) in PTX_ISA {
            assert_eq!(cuda_of_ptx(*isa), Some(*cuda));
        }
        for driver in DRIVERS {
            assert!(driver_of_cuda(driver.cuda).is_some_and(|least| least <= driver.linux));
            let floor = floor_of_major(driver.cuda.major()).unwrap();
            assert!(
                driver.linux.major() >= floor.major(),
                "{} is below its floor",
                driver.linux
            );
        }
        assert_eq!(
            cuda_of_ptx(Version::new([8, 7, 0])),
            Some(Version::new([12, 8, 0]))
        );
        assert_eq!(cuda_of_ptx(Version::new([99, 0, 0])), None);
        assert_eq!(
            driver_of_cuda(Version::new([12, 2, 0])),
            Some(Version::new([535, 54, 3]))
        );
        assert_eq!(driver_of_cuda(Version::new([1, 0, 0])), None);
        assert_eq!(floor_of_major(10), None);
    }

    #[test]
    fn the_floors_of_cudnn_are_those_of_its_cuda() {
        for (_, cuda, floor) in CUDNN_FLOORS {
            assert_eq!(floor_of_major(*cuda), Some(*floor));
        }
        assert!(DEBUGGING_VARIABLES.iter().all(|(name, _)| {
            name.chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        }));
    }
}
