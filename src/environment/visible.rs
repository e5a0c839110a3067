/// What CUDA_VISIBLE_DEVICES leaves of a machine's GPUs, by the driver's rules: a list of numbers or of beginnings of UUIDs, which
/// ends at the first that names none; a GPU named twice leaves none at all.
///
/// The first entry decides whether numbers or UUIDs count: the list ends at one of the other kind. Of a number only the digits that it
/// begins with are read.
///
/// Source: CUDA Programming Guide, environment variables; the rest is the driver's behaviour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Visible {
    /// By their places among the machine's GPUs; numbers count as CUDA orders them, which need not be NVML's order.
    pub(super) gpus: Vec<usize>,
    /// The first entry that names no GPU.
    pub(super) invalid: Option<String>,
    /// The first entry that names a GPU for the second time.
    pub(super) twice: Option<String>,
    /// Whether instances of divided GPUs are named, which NVML's list of GPUs does not tell.
    pub(super) names_instances: bool,
}

impl Visible {
    pub(super) fn parse(variable: Option<&str>, uuids: &[&str]) -> Self {
        let Some(variable) = variable else {
            return Self {
                gpus: (0..uuids.len()).collect(),
                ..Self::default()
            };
        };
        let mut visible = Self::default();
        let is_number = |entry: &str| entry.trim().starts_with(|c: char| c.is_ascii_digit());
        let by_number = is_number(variable);
        for entry in variable.split(',') {
            let entry = entry.trim();
            if is_number(entry) != by_number {
                visible.invalid = Some(entry.to_owned());
                break;
            }
            if entry.starts_with("MIG-") {
                visible.names_instances = true;
                continue;
            }
            match place(entry, uuids) {
                None => {
                    visible.invalid = Some(entry.to_owned());
                    break;
                }
                Some(place) if visible.gpus.contains(&place) => {
                    visible.gpus.clear();
                    visible.twice = Some(entry.to_owned());
                    break;
                }
                Some(place) => visible.gpus.push(place),
            }
        }
        visible
    }

    pub(super) fn hides_all(&self) -> bool {
        self.gpus.is_empty() && !self.names_instances
    }
}

/// A number, or the beginning of one GPU's UUID alone.
fn place(entry: &str, uuids: &[&str]) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let mut named = uuids
            .iter()
            .enumerate()
            .filter(|(_, uuid)| uuid.starts_with(entry));
        return match (named.next(), named.next()) {
            (Some((place, _)), None) => Some(place),
            _ => None,
        };
    }
    let digits = entry
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(entry.len());
    entry[..digits]
        .parse()
        .ok()
        .filter(|place| *place < uuids.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [&str; 3] = ["GPU-11-a", "GPU-12-b", "GPU-2-c"];

    #[test]
    fn the_driver_s_rules() {
        let gpus = |text: &str| Visible::parse(Some(text), &UUIDS).gpus;
        assert_eq!(Visible::parse(None, &UUIDS).gpus, [0, 1, 2]);
        assert_eq!(gpus("2,0"), [2, 0]);
        assert_eq!(gpus("0,2,-1,1"), [0, 2], "the guide's own example");
        assert_eq!(gpus("1, 7 ,0"), [1]);
        assert_eq!(gpus("GPU-12,GPU-2"), [1, 2]);
        assert!(gpus("GPU-1").is_empty(), "two begin so");
        assert!(gpus("").is_empty() && gpus("-1").is_empty() && gpus("NoDevFiles").is_empty());
        assert!(gpus("0,1,0").is_empty(), "twice");
        assert!(gpus("GPU-12,GPU-12-b").is_empty(), "twice");
        assert_eq!(gpus("1,GPU-11,0"), [1], "numbers, and then a UUID");
        assert_eq!(gpus("GPU-12,0"), [1], "UUIDs, and then a number");
        assert_eq!(gpus("1x, 2 of them"), [1, 2], "digits alone count");
        let instance = Visible::parse(Some("MIG-5f9c"), &UUIDS);
        assert!(instance.names_instances && !instance.hides_all());
    }
}
