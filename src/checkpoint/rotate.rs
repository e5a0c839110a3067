use std::path::Path;

use super::best::Best;
use super::content::{open, read_all};
use super::document::{Document, STATE};
use super::folder::{checkpoints, remove};
use super::name::Name;
use crate::error::Result;

/// What stays in a folder.
#[derive(Debug, Clone, Default)]
pub(super) struct Keep {
    pub(super) last: usize,
    pub(super) best: Option<Best>,
    /// Found damaged when the run was resumed.
    pub(super) damaged: Vec<Name>,
}

impl Keep {
    /// Removes what need not stay, after the checkpoint of step `written` has reached the disk. That one always stays; so does a newer
    /// one, which can only be damaged.
    pub(super) fn rotate(&self, folder: &Path, written: u64) -> Result<()> {
        let mut all = checkpoints(folder)?;
        all.retain(|name| name.step <= written);
        let intact = self.intact(&all);
        let best = self.best_of(folder, &intact);
        let kept: Vec<Name> = intact.into_iter().take(self.last).chain(best).collect();
        for name in all {
            if !kept.contains(&name) {
                remove(folder, name)?;
            }
        }
        Ok(())
    }

    /// The best by its metric.
    pub(super) fn best(&self, folder: &Path) -> Result<Option<Name>> {
        Ok(self.best_of(folder, &self.intact(&checkpoints(folder)?)))
    }

    /// Those that may stay: of each step the newest, because it was saved again.
    fn intact(&self, all: &[Name]) -> Vec<Name> {
        let intact = all.iter().filter(|name| !self.damaged.contains(name));
        let mut intact: Vec<Name> = intact.copied().collect();
        intact.dedup_by_key(|name| name.step);
        intact
    }

    /// Of equals the oldest.
    fn best_of(&self, folder: &Path, intact: &[Name]) -> Option<Name> {
        let best = self.best.as_ref()?;
        let mut found: Option<(Name, f64)> = None;
        for &name in intact.iter().rev() {
            let Some(value) = metric(folder, name, &best.metric) else {
                continue;
            };
            if found.is_none_or(|(_, other)| best.prefers(value, other)) {
                found = Some((name, value));
            }
        }
        found.map(|(name, _)| name)
    }
}

fn metric(folder: &Path, name: Name, metric: &str) -> Option<f64> {
    let path = folder.join(name.to_string());
    let bytes = read_all(&open(&path.join(STATE)).ok()?).ok()?;
    let document = Document::read(&path, &bytes).ok()?;
    document.metrics.get(metric).copied()
}
