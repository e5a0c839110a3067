//! The exchange of an update: status messages first, then the sums of gradients and losses, then, with sharded state, the parameters that each
//! rank has updated.
//!
//! All that can run out of memory comes before the status message. A rank that fails later ends the group, because the others may have updated.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};
use crc32fast::Hasher;

use super::shares::Shares;
use super::status::{CALL, Data, Progress, Status, Turn, bits, check};
use crate::batch::{Engine, Measured, Origin, run_phase};
use crate::distributed::{Collectives, Group, Operation};
use crate::elements::with_bytes;
use crate::error::{Error, Phase, Result};
use crate::memory::recover;
use crate::optim::{Commit, StateDict, blend};
use crate::testing;
use crate::train::accumulator::GradientAccumulator;
use crate::train::loss::StepLoss;
use crate::train::positions::Positions;
use crate::train::report::{Exchange, RankWork, Settings, Spent};
use crate::train::slots::{put, take};

/// The other ranks of a trainer.
#[derive(Debug)]
pub(in crate::train) struct Ranks {
    pub(super) group: Group,
    engine: Arc<dyn Collectives>,
    /// Parameters are compared after this many updates.
    compare_every: u64,
    /// Parameters are compared in the next update.
    compares: bool,
    pub(super) progress: Arc<Progress>,
    /// When the exchange before ended.
    since: Instant,
    /// `None` if batches are not divided by what ranks were measured to do.
    shares: Option<Shares>,
    /// Each rank updates the elements that it sums.
    is_sharded: bool,
    /// The place of the mean loss, where it comes with the parameters.
    loss: Option<Tensor>,
}

impl Ranks {
    pub(super) fn new(group: &Group, engine: Arc<dyn Collectives>, settings: &Settings) -> Self {
        let shares = |updates| Shares::new(group.size(), updates);
        Self {
            group: group.clone(),
            engine,
            compare_every: settings.compare_every,
            compares: true,
            progress: Arc::default(),
            since: Instant::now(),
            shares: settings.measured.map(shares),
            is_sharded: false,
            loss: None,
        }
    }

    /// Divides the next batches of these loaders as the ranks' speeds suggest, once they are known. `positions` are made to say so.
    pub(in crate::train) fn divide(&mut self, origins: &[Origin<'_>], positions: &mut Positions) {
        if let Some(shares) = &mut self.shares {
            shares.divide(origins, positions);
        }
    }

    /// Starts this rank's update; the others wait for its status message.
    pub(in crate::train) fn turn(&self) -> Turn {
        Turn::new(&self.group, &self.progress)
    }

    /// Compares the ranks' parameters in the next update, because they were loaded.
    pub(in crate::train) fn compare(&mut self) {
        self.compares = true;
    }

    /// Replaces this rank's accumulated gradients by those of all ranks. After an error nothing has changed if all ranks have it; if the engine
    /// failed, the gradients are lost, and the group has ended.
    pub(super) fn exchange<O: Commit>(
        &mut self,
        engine: &Engine,
        memory: &Measured,
        accumulator: &mut GradientAccumulator<O>,
        spent: Spent,
        data: &Data,
    ) -> Result<Exchange> {
        self.is_sharded = accumulator.optimizer().is_sharded();
        let prepared = run_phase(Phase::Reduce, None, || self.prepare(accumulator));
        let (mut status, loss) = match prepared {
            Err(Error::ResourceExhausted(exhausted)) => {
                tracing::warn!(error = %exhausted, "what ranks exchange is prepared again");
                recover(&accumulator.device())?;
                run_phase(Phase::Reduce, None, || self.prepare(accumulator))?
            }
            prepared => prepared?,
        };
        let began = Instant::now();
        status.data = data.checksum(&self.group)?;
        let elapsed = began.saturating_duration_since(self.since);
        status.computed = spent.seconds as f32;
        status.elapsed = elapsed.as_secs_f64() as f32;
        let measures = self.shares.as_ref().is_some_and(Shares::is_measuring);
        status.pace = spent.pace().filter(|_| measures);
        let progress = Arc::clone(&self.progress);
        let agree = || {
            let agreed = self.agree(accumulator, status, data);
            // No rank goes on to the exchange.
            agreed.inspect_err(|_| progress.is_over.store(true, Ordering::Relaxed))
        };
        let reported = Some((engine, memory));
        let statuses = run_phase(Phase::Wait, reported, agree)?;
        let waited = began.elapsed();
        let reduce = || {
            let loss = self.reduce(accumulator, &statuses, loss)?;
            testing::inject_after_exchange()?;
            Ok::<_, Error>(loss)
        };
        match run_phase(Phase::Reduce, reported, reduce) {
            Ok(loss) => self.loss = loss,
            Err(error) => {
                accumulator.reset();
                self.group.control().fail(&error.to_string());
                return Err(error);
            }
        }
        let reduced = began.elapsed().saturating_sub(waited);
        if let Some(shares) = &mut self.shares {
            shares.observe(statuses.iter().map(|status| status.pace));
        }
        self.since = Instant::now();
        let works = statuses.iter().map(|status| RankWork {
            samples: status.samples,
            weight: status.weight,
            computed: Duration::try_from_secs_f32(status.computed).unwrap_or_default(),
            elapsed: Duration::try_from_secs_f32(status.elapsed).unwrap_or_default(),
        });
        Ok(Exchange {
            rank: self.group.rank(),
            ranks: works.collect(),
            waited,
            reduced,
        })
    }

    /// Waits for the status messages of all ranks, and checks that they can update together.
    fn agree<O: Commit>(
        &mut self,
        accumulator: &mut GradientAccumulator<O>,
        own: Status,
        data: &Data,
    ) -> Result<Vec<Status>> {
        // From here on the others know.
        self.progress.has_spoken.store(true, Ordering::Relaxed);
        let is_compared = own.values.is_some();
        let statuses = self.group.collect_in(CALL, vec![own])?;
        check(&statuses)?;
        data.compare(&self.group, statuses.iter().map(|status| status.data))?;
        // Where some have loaded state, all compare in the next update.
        self.compares = statuses
            .iter()
            .any(|status| status.values.is_some() != is_compared);
        if statuses.iter().any(|status| status.weight > 0.) {
            accumulator
                .slots
                .check_reached(|slot, _| statuses.iter().any(|status| status.is_filled(slot)))?;
        }
        Ok(statuses)
    }

    /// Does all that can run out of memory, and returns this rank's status message and the place of the mean loss.
    fn prepare<O: Commit>(
        &self,
        accumulator: &mut GradientAccumulator<O>,
    ) -> Result<(Status, Option<Tensor>)> {
        testing::inject(Phase::Reduce)?;
        accumulator.begin()?;
        let (slots, window) = (&accumulator.slots, &accumulator.window);
        if window.loss.weight() <= 0. {
            // Without samples no loss was scaled here, and the update has those of other ranks.
            let none = Tensor::zeros((), DType::F32, &accumulator.device())?;
            accumulator.optimizer().scale_loss(&none)?;
        }
        let mut loss = None;
        if let Some(flat) = &slots.flat {
            flat.set_loss(&window.loss)?;
            loss = flat.loss.as_ref().map(Tensor::zeros_like).transpose()?;
        }
        // Also after the first update, where most of what differs between ranks shows.
        let updates = accumulator.updates;
        let is_due = self.compares || updates == 1 || updates.is_multiple_of(self.compare_every);
        let status = Status {
            updates: accumulator.updates,
            trained: slots.fingerprint ^ u32::from(self.is_sharded),
            awaited: slots.awaited_fingerprint(),
            values: is_due.then(|| values(accumulator)).transpose()?,
            filled: bits(slots.slots.iter().map(|slot| slot.is_filled)),
            samples: window.samples,
            weight: window.loss.weight(),
            ..Status::default()
        };
        Ok((status, loss))
    }

    /// Sums the gradients, and the losses if `loss` is a place for their mean. Returns the place if it is still to be filled.
    fn reduce<O: Commit>(
        &self,
        accumulator: &mut GradientAccumulator<O>,
        statuses: &[Status],
        loss: Option<Tensor>,
    ) -> Result<Option<Tensor>> {
        let total: f64 = statuses.iter().map(|status| status.weight).sum();
        let own = accumulator.window.loss.weight();
        let slots = &mut accumulator.slots;
        if total <= 0. {
            return Ok(None);
        }
        slots.complete(|slot| statuses.iter().any(|status| status.is_filled(slot)))?;
        let (Some(flat), Some(loss)) = (&slots.flat, loss) else {
            return Ok(None);
        };
        let watch = self.group.watch(CALL);
        for bucket in &flat.buckets {
            let factor = own / total;
            let operation = match self.is_sharded {
                true => {
                    if factor != 1. {
                        blend(bucket, factor, 0., None)?;
                    }
                    Operation::ReduceScatter
                }
                false => Operation::AllReduce { factor },
            };
            self.engine.exchange(bucket, operation, &watch)?;
        }
        self.engine.finish(&watch)?;
        let mean = StepLoss::mean(loss.clone(), total);
        if self.is_sharded {
            accumulator.window.loss = mean;
            return Ok(Some(loss));
        }
        slots.statistics().try_for_each(take)?;
        if let Some(sum) = &flat.loss {
            loss.slice_set(sum, 0, 0)?;
        }
        accumulator.window.loss = mean;
        Ok(None)
    }

    /// Gives all ranks the parameters that each has updated, where the optimizer's state is sharded, and the mean loss. Returns how long it
    /// took.
    pub(super) fn share<O: Commit>(
        &mut self,
        engine: &Engine,
        memory: &Measured,
        accumulator: &GradientAccumulator<O>,
    ) -> Result<Duration> {
        let began = Instant::now();
        let slots = &accumulator.slots;
        let (Some(flat), Some(loss)) = (&slots.flat, self.loss.take()) else {
            return Ok(Duration::ZERO);
        };
        let share = || {
            testing::inject(Phase::Reduce)?;
            slots.learning().try_for_each(put)?;
            let watch = self.group.watch("share parameters");
            for bucket in &flat.buckets {
                self.engine.exchange(bucket, Operation::AllGather, &watch)?;
            }
            self.engine.finish(&watch)?;
            slots.learning().try_for_each(take)?;
            slots.statistics().try_for_each(take)?;
            if let Some(sum) = &flat.loss {
                loss.slice_set(sum, 0, 0)?;
            }
            Ok::<_, Error>(())
        };
        run_phase(Phase::Reduce, Some((engine, memory)), share)?;
        self.since = Instant::now();
        Ok(began.elapsed())
    }

    /// Adds what each rank measured of its elements, in the order of ranks, so that all get the same bits.
    pub(in crate::train) fn sum(&self, own: f64) -> Result<f64> {
        let all = self.group.collect_in("measure gradients", vec![own])?;
        Ok(all.iter().sum())
    }

    /// Puts the parts of an optimizer's state together on rank 0. If a rank has none, all fail.
    pub(in crate::train) fn merge(&self, own: Result<StateDict>) -> Result<StateDict> {
        let part = own.and_then(|own| Ok(own.to_bytes()?));
        let (part, _) = self.group.agree("state", part, |_| ())?;
        let parts = self.group.control().gather_at_first("state", &part)?;
        // Each part's bytes are freed when it is read.
        let parts = parts.into_iter().map(|bytes| StateDict::from_bytes(&bytes));
        let parts = parts.collect::<candle_core::Result<Vec<_>>>()?;
        match parts.is_empty() {
            true => Ok(StateDict::default()),
            false => StateDict::merge(parts),
        }
    }

    pub(in crate::train) fn rank(&self) -> usize {
        self.group.rank()
    }
}

/// A checksum of all parameters, which waits for the device and copies them to the host one by one.
fn values<O: Commit>(accumulator: &GradientAccumulator<O>) -> Result<u32> {
    let mut hasher = Hasher::new();
    for var in accumulator.slots.updated() {
        with_bytes(var, |bytes| hasher.update(bytes))?;
    }
    Ok(hasher.finalize())
}
