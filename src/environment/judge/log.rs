use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::log::Xid;
use crate::facts::XidAction;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(log) = &facts.log else {
        return Vec::new();
    };
    let log = match log {
        Err(reasons) => return vec![Finding::new(code::LOG_UNREADABLE, reasons.clone())],
        Ok(log) => log,
    };
    let path = log.path;
    if log.messages.is_empty() {
        return vec![Finding::new(code::LOG_CLEAN, path)];
    }
    let mut found: Vec<_> = log.messages.iter().map(|xid| message(xid, path)).collect();
    if log.more > 0 {
        let seen = format!("{} further kinds of older messages ({path})", log.more);
        found.push(Finding::new(code::XID_OTHER, seen));
    }
    found
}

fn message(xid: &Xid, path: &str) -> Finding {
    let times = match xid.count {
        1 => String::new(),
        count => format!(", {count} times"),
    };
    // Files go back further than the last start.
    let since = match path {
        "/dev/kmsg" => "since the last start",
        _ => "perhaps before the last start",
    };
    let (number, device, text) = (xid.number, &xid.address, &xid.text);
    let seen = format!("Xid {number} of {device}{times}, {since} ({path}): {text}");
    let (next, command) = match xid.action {
        Some(XidAction::ResetGpu) => (
            "end the GPU's programs and reset it, unless that has been done since",
            format!("sudo nvidia-smi --gpu-reset -i {device}"),
        ),
        Some(XidAction::Reboot) => (
            "restart the machine, unless that has been done since",
            "sudo reboot".to_owned(),
        ),
        Some(XidAction::CheckPower) => ("attach the GPU's auxiliary power", String::new()),
        Some(XidAction::CheckNvlink) => (
            "check the NVLink connections",
            "nvidia-smi nvlink --status".to_owned(),
        ),
        Some(XidAction::UpdateSoftware) => (
            "update the driver and the firmware",
            "nvidia-smi".to_owned(),
        ),
        Some(XidAction::RestartApplication) => return Finding::new(code::XID_APPLICATION, seen),
        Some(XidAction::Ignore | XidAction::FollowOther | XidAction::SaidInText) | None => {
            return Finding::new(code::XID_OTHER, seen);
        }
    };
    Finding::new(code::XID_HARDWARE, seen)
        .next(next)
        .by(command)
}
