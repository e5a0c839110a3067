//! One page and one trace of all ranks of a group.

use std::path::{Path, PathBuf};

use super::ranks::{Gathered, RankTimes};
use super::recorder::Recorder;
use super::{Timeline, page, trace};
use crate::distributed::Group;
use crate::error::{OutputError, Result};
use crate::output::save;

impl Timeline {
    /// Writes the records of all ranks of a group as one page, `path` with `.html`, and one trace, `path` with `.json`. All ranks call it, and
    /// rank 0 writes. Returns how the ranks spent their time.
    ///
    /// The page shows a lane for each rank, with its waiting for others, a table, and rank 0's record; in the trace each rank is a process. Their
    /// clocks are aligned by the ends of exchanges. Each rank sends a share of what one record holds, so the files grow little with the
    /// number of ranks: of many ranks the trace has the latest phases only. In a group of one the files are those of
    /// [`save_page`](Self::save_page) and [`save_trace`](Self::save_trace).
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::distributed::Group;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let group = Group::from_environment()?;
    /// let timeline = Timeline::new();
    /// // … train, with `.group(&group).observer(timeline.clone())` …
    /// let times = timeline.save_all(&group, "my run", folder.join("run"))?;
    /// println!("{times}"); // rank 3 is the slowest: the others waited 12 % of the time for it
    /// assert!(folder.join("run.html").exists() && folder.join("run.json").exists());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`GroupError`](crate::error::GroupError) if a rank is lost. Each of the others then writes its own record, with its rank in the name, as
    ///   in `run.rank1.html` and `run.rank1.json`;
    /// - [`OutputError`] with the path, on rank 0.
    pub fn save_all(
        &self,
        group: &Group,
        title: &str,
        path: impl AsRef<Path>,
    ) -> Result<RankTimes> {
        let (path, rank, own) = (path.as_ref(), group.rank(), self.copy());
        // While rank 0 writes, the others may wait for it in their next call.
        let _working = group.working();
        let gathered = gather(group, own.clone());
        let save_own =
            |path: &Path| save_both(path, &page::write(&own, title, None), &trace::write(&own));
        match &gathered {
            Ok((None, _)) => {}
            Ok((Some(all), _)) if group.size() > 1 => {
                let page = page::write(&own, title, Some(all));
                save_both(path, &page, &trace::write_all(all))?;
            }
            Ok(_) => save_own(path)?,
            Err(_) => {
                // The lost rank matters more.
                if let Err(error) = save_own(&ending(path, &format!(".rank{rank}"))) {
                    tracing::warn!(%error, "the record of this rank is lost");
                }
            }
        }
        gathered.map(|(_, times)| times)
    }
}

/// Gives rank 0 the records of all, and all ranks how they spent their time.
fn gather(group: &Group, mut own: Recorder) -> Result<(Option<Gathered>, RankTimes)> {
    const CALL: &str = "save a timeline";
    own.shorten(group.size());
    // As the trace serializes rows, which is compiled once.
    let own = serde_json::to_value(&own).map_err(unfit)?;
    let bytes = serde_json::to_vec(&own).map_err(unfit)?;
    let all = group.control().gather_at_first(CALL, &bytes)?;
    let gathered = match group.rank() {
        0 => match Gathered::read(&all, group.hosts()) {
            Ok(gathered) => Some(gathered),
            Err(error) => return Err(group.collect_none(CALL, unfit(error).into())),
        },
        _ => None,
    };
    let own = gathered.iter().map(|all| all.times.clone()).collect();
    let times = group.collect_in(CALL, own)?;
    // Only rank 0 gave any.
    let times = times.into_iter().next().unwrap_or_default();
    Ok((gathered, times))
}

fn unfit(error: serde_json::Error) -> OutputError {
    OutputError::of("a timeline", &error.into())
}

fn save_both(path: &Path, page: &str, trace: &str) -> Result<()> {
    save(&ending(path, ".html"), page)?;
    save(&ending(path, ".json"), trace)
}

/// A path with more at its end.
fn ending(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}
