use std::fmt;
use std::time::Duration;

use super::callback::Callback;
use super::sample::Sample;
use super::source::Source;
use super::threshold::{Crossing, Threshold};

pub(super) type Ring = Box<dyn FnMut(&Crossing<'_>) + Send>;

/// A threshold with its callback and the state of each source.
pub(super) struct Watched {
    threshold: Threshold,
    ring: Callback<dyn FnMut(&Crossing<'_>) + Send>,
    states: Vec<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    is_over: bool,
    /// When a sample was last over the threshold.
    last_over: Duration,
    /// Memory errors are counted from here.
    first_errors: Option<u64>,
}

impl Watched {
    pub(super) fn new(threshold: Threshold, ring: Ring, sources: usize) -> Self {
        Self {
            threshold,
            ring: Callback::new(ring),
            states: vec![State::default(); sources],
        }
    }

    pub(super) fn see(&mut self, source: &Source, sample: &Sample) {
        let Some(state) = self.states.get_mut(sample.source) else {
            return;
        };
        let Some(value) = self.threshold.value(sample, &mut state.first_errors) else {
            return;
        };
        let is_over = self.threshold.is_over(value, state.is_over);
        if is_over {
            state.last_over = sample.at;
        }
        let calm_for = sample.at.saturating_sub(state.last_over);
        if is_over == state.is_over || (!is_over && calm_for < self.threshold.calm()) {
            return;
        }
        state.is_over = is_over;
        let crossing = Crossing {
            threshold: &self.threshold,
            source,
            sample,
            is_over,
        };
        match is_over {
            true => tracing::warn!("{crossing}"),
            false => tracing::info!("{crossing}"),
        }
        self.ring.call(|ring| ring(&crossing));
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.threshold.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::monitor::HeldDown;

    /// When a threshold rang, in milliseconds, and whether it was crossed or recovered.
    fn rings(
        threshold: Threshold,
        times: impl Iterator<Item = u64>,
        fill: impl Fn(&mut Sample, u64),
    ) -> Vec<(u64, bool)> {
        let (send, receive) = mpsc::channel();
        let ring = Box::new(move |crossing: &Crossing<'_>| {
            let at = crossing.sample.at.as_millis() as u64;
            send.send((at, crossing.is_over)).unwrap();
        });
        let mut watched = Watched::new(threshold, ring, 1);
        for at in times {
            let mut sample = Sample::blank(0, UNIX_EPOCH, Duration::from_millis(at));
            fill(&mut sample, at);
            watched.see(&Source::host(), &sample);
        }
        drop(watched);
        receive.iter().collect()
    }

    #[test]
    fn clocks_that_go_down_and_up_ring_once() {
        let times = (0..20_000).step_by(100);
        let rung = rings(Threshold::held_down(), times, |sample, at| {
            let is_down = at < 10_000 && at % 200 == 0;
            sample.held_down = Some(HeldDown::from_bits(if is_down { 0x40 } else { 0 }));
        });
        assert_eq!(rung, [(0, true), (9_800 + 5_000, false)]);
    }

    #[test]
    fn errors_count_from_zero_after_a_reset() {
        let counted = [5, 5, 0, 0, 4];
        let rung = rings(Threshold::ecc_errors(1), 0..5, |sample, at| {
            sample.ecc_errors = Some(counted[at as usize]);
        });
        assert_eq!(rung, [(4, true)]);
    }

    #[test]
    fn a_small_share_can_recover() {
        let used = [3, 5, 3, 2, 5];
        let rung = rings(Threshold::memory_share(0.05), 0..5, |sample, at| {
            (sample.total, sample.used) = (Some(100), Some(used[at as usize]));
        });
        assert_eq!(rung, [(1, true), (3, false), (4, true)]);
    }

    /// Four waves of 30 to 90 °C over a day at 10 Hz, with noise of a degree; the GPU is lost for a minute of each hour.
    #[test]
    fn four_waves_in_a_day_ring_four_times_and_recover_four_times() {
        let times = (0..24 * 3600 * 1000).step_by(100);
        let rung = rings(Threshold::temperature(80), times, |sample, at| {
            let seconds = at / 1000;
            if seconds % 3600 >= 60 || seconds < 3600 {
                let wave = seconds as f64 / 86_400. * std::f64::consts::TAU * 4.;
                sample.temperature = Some((wave.sin() * 30. + 60.) as u64 + seconds % 2);
            }
        });
        assert_eq!(rung.len(), 8);
    }
}
