/// The GPUs that CUDA_VISIBLE_DEVICES leaves visible: a list of numbers, of which only leading digits count, or of prefixes of UUIDs. It
/// ends at the first entry that names no GPU or is of the other kind. A GPU named twice leaves none visible.
/// Source: CUDA Programming Guide, environment variables; the rest is the driver's behaviour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Visible {
    /// Places among the machine's GPUs. Numbers count in CUDA's order, which can differ from NVML's.
    pub(crate) gpus: Vec<usize>,
    /// The first entry that names no GPU.
    pub(crate) invalid: Option<String>,
    /// The first entry that names a GPU for the second time.
    pub(crate) twice: Option<String>,
    /// Whether instances of divided GPUs are named, which NVML's list of GPUs lacks.
    pub(crate) names_instances: bool,
}

impl Visible {
    pub(crate) fn parse(variable: Option<&str>, uuids: &[String]) -> Self {
        let mut visible = Self::default();
        let Some(variable) = variable else {
            visible.gpus = (0..uuids.len()).collect();
            return visible;
        };
        let is_number = |entry: &str| entry.starts_with(|c: char| c.is_ascii_digit());
        let by_number = is_number(variable.trim_start());
        for entry in variable.split(',').map(str::trim) {
            let is_of_kind = is_number(entry) == by_number;
            if is_of_kind && entry.starts_with("MIG-") {
                visible.names_instances = true;
                continue;
            }
            match place(entry, uuids).filter(|_| is_of_kind) {
                Some(place) if visible.gpus.contains(&place) => {
                    visible.gpus.clear();
                    visible.twice = Some(entry.to_owned());
                    break;
                }
                Some(place) => visible.gpus.push(place),
                None => {
                    visible.invalid = Some(entry.to_owned());
                    break;
                }
            }
        }
        visible
    }

    pub(crate) fn hides_all(&self) -> bool {
        self.gpus.is_empty() && !self.names_instances
    }
}

/// The place of a GPU by its number, or by a prefix of its UUID that no other GPU has.
fn place(entry: &str, uuids: &[String]) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let places = 0..uuids.len();
        let mut named = places.filter(|place| uuids[*place].starts_with(entry));
        return named.next().filter(|_| named.next().is_none());
    }
    let digits = entry.split(|c: char| !c.is_ascii_digit()).next()?;
    let place = digits.parse().ok();
    place.filter(|place| *place < uuids.len())
}
