use std::collections::BTreeMap;

use super::{Facts, Findings, code, joined};

/// `nvmlGpuP2PStatus_t` in nvml.h.
fn meaning(status: u32) -> &'static str {
    match status {
        1 => "not supported by the chipset",
        2 => "not supported by a GPU",
        3 => "not supported across these hubs of the bus",
        4 => "disabled by a setting of the driver",
        5 => "not supported",
        _ => "unknown",
    }
}

/// Access between the GPUs that this process sees.
pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let gpus = facts.all_gpus();
    let is_visible = |index: &u32| gpus.iter().any(|gpu| gpu.visible && gpu.index == *index);
    let pairs = facts
        .nvml
        .works()
        .map_or(&[][..], |readings| &readings.pairs);
    let pairs = pairs.iter().filter(|pair| pair.gpus.iter().all(is_visible));
    let pairs: Vec<_> = pairs.collect();
    if pairs.is_empty() {
        return;
    }
    let mut refused = BTreeMap::<u32, Vec<String>>::new();
    for pair in pairs.iter().filter(|pair| pair.status != 0) {
        let [one, other] = pair.gpus;
        let pairs = refused.entry(pair.status).or_default();
        pairs.push(format!("{one} and {other}"));
    }
    if refused.is_empty() {
        let by_nvlink = pairs.iter().filter(|pair| pair.by_nvlink).count();
        let seen = format!("pairs: {}, by NVLink: {by_nvlink}", pairs.len());
        return findings.add(code::PEERS, seen);
    }
    for (status, refused) in refused {
        const SHOWN: usize = 6;
        let more = refused.len().saturating_sub(SHOWN);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let refused = joined(refused.iter().take(SHOWN).map(String::as_str), ", ");
        let reason = meaning(status);
        findings.add(
            code::NO_PEERS,
            format!("GPUs {refused}{more}: {reason} ({status})"),
        );
    }
}
