use crate::environment::code::{
    LOG_CLEAN, LOG_UNREADABLE, XID_APPLICATION, XID_HARDWARE, XID_OTHER,
};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::log::Xid;
use crate::facts::XidAction;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(log) = &facts.log else {
        return Vec::new();
    };
    match &log.read {
        Err(reasons) => vec![Finding::new(&LOG_UNREADABLE, reasons.clone())],
        Ok(path) if log.messages.is_empty() => vec![Finding::new(&LOG_CLEAN, *path)],
        Ok(path) => {
            let mut found: Vec<_> = log.messages.iter().map(|xid| message(xid, path)).collect();
            if log.more > 0 {
                let seen = format!(
                    "{} kinds of messages more, all of them older ({path})",
                    log.more
                );
                found.push(Finding::new(&XID_OTHER, seen));
            }
            found
        }
    }
}

fn message(xid: &Xid, path: &str) -> Finding {
    use XidAction as A;
    let times = match xid.count {
        1 => String::new(),
        count => format!(", {count} times"),
    };
    // Files go back further than the last start, and what they tell of may be over.
    let since = match path {
        "/dev/kmsg" => "since the last start",
        _ => "perhaps before the last start",
    };
    let seen = format!(
        "Xid {} of {}{times}, {since} ({path}): {}",
        xid.number, xid.address, xid.text
    );
    let device = xid.address.as_str();
    let hardware = |next: &'static str, command: String| {
        Finding::new(&XID_HARDWARE, seen.clone())
            .next(next)
            .by(command)
    };
    match xid.action {
        Some(A::ResetGpu) => hardware(
            "end its programs and reset the GPU, unless that has been done since",
            format!("sudo nvidia-smi --gpu-reset -i {device}"),
        ),
        Some(A::Reboot) => hardware(
            "restart the machine, unless that has been done since",
            "sudo reboot".to_owned(),
        ),
        Some(A::CheckPower) => hardware("attach the GPU's auxiliary power", String::new()),
        Some(A::CheckNvlink) => hardware(
            "check the NVLink connections",
            "nvidia-smi nvlink --status".to_owned(),
        ),
        Some(A::UpdateSoftware) => hardware("update driver and firmware", "nvidia-smi".to_owned()),
        Some(A::RestartApplication) => Finding::new(&XID_APPLICATION, seen),
        Some(A::Ignore) | Some(A::FollowOther) | Some(A::SaidInText) | None => {
            Finding::new(&XID_OTHER, seen)
        }
    }
}
