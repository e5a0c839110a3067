//! A trainer whose update is that of all ranks.
//!
//! Ranks meet once for each update. First each one tells the others, in host memory, whether it can update and with what weight: between two
//! meetings it cuts, retries and recomputes its samples as it likes. It also says which batches of which loaders it has, as a checksum; if these
//! differ, the ranks exchange the texts and none updates. If all can, they add their gradients, each scaled by its part of the
//! weight, and every rank applies the same update. If one cannot, none does.

mod reduce;
mod shares;
mod status;

pub(super) use reduce::Ranks;
pub(super) use status::{Data, Turn};

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use candle_core::Var;

use super::core::Core;
use super::flat::Layout;
use super::report::{Settings, StepReport};
use crate::batch::{Engine, Measured, Processed};
use crate::distributed::{Collectives, Group, Operation};
use crate::error::{Error, Result, UpdateInterrupted, different};
use crate::optim::{Commit, Parameter};

impl<O: Commit> Core<O> {
    /// Adds the gradients of all ranks, and applies the update on each.
    pub(super) fn apply_together(
        &mut self,
        engine: &Engine,
        processed: &mut Processed<()>,
    ) -> Result<StepReport> {
        let Some(ranks) = &mut self.ranks else {
            return self.apply(engine, processed);
        };
        self.accumulator.refuse_if_interrupted()?;
        // What is only queued belongs to this rank's time. The exchange would wait for it too.
        let began = Instant::now();
        engine.device.synchronize()?;
        self.spent.seconds += began.elapsed().as_secs_f64();
        let measured = Measured::begin(engine.memory.as_ref());
        let (spent, data) = (std::mem::take(&mut self.spent), self.positions.data());
        let exchange = ranks.exchange(engine, &measured, &mut self.accumulator, spent, &data);
        let mut exchange = self.complete(engine, &measured, exchange)?;
        let mut report = self.apply(engine, processed);
        let (ranks, accumulator) = (&mut self.ranks, &mut self.accumulator);
        if let (Ok(_), Some(ranks)) = (&report, ranks.as_mut()) {
            // Until it returns, because a panic may leave other ranks' elements as they were.
            accumulator.is_interrupted = true;
            match ranks.share(engine, &measured, accumulator) {
                Ok(shared) => {
                    accumulator.is_interrupted = false;
                    exchange.reduced += shared;
                }
                // This rank's elements have moved, and not all others. A lost group keeps its own error, which says more.
                Err(error @ Error::Group(_)) => report = Err(error),
                Err(error) => report = Err(UpdateInterrupted::with(error)),
            }
        }
        if let Some(ranks) = ranks {
            // Applied or not: a panic from here on concerns no other rank.
            ranks.progress.is_over.store(true, Ordering::Relaxed);
            if let Err(error) = &report {
                // The others may have updated.
                ranks.group.control().fail(&error.to_string());
            }
        }
        let mut report = report?;
        report.exchange = Some(exchange);
        Ok(report)
    }
}

/// The name of the call in which ranks meet.
const CALL: &str = "build a trainer";

/// Makes this trainer one of the group's: the ranks compare what they train, and take rank 0's parameters.
pub(super) fn join<O: Commit>(
    core: Result<Core<O>>,
    group: &Group,
    options: Vec<String>,
    settings: Settings,
) -> Result<Core<O>> {
    if group.size() == 1 {
        return core;
    }
    let _in_step = group.in_step("build a trainer");
    // Each parameter and each option, as text.
    let plan = |core: &Core<O>| {
        let model = model(core);
        let model = model.iter().map(|Parameter { name, var, .. }| {
            format!("`{name}` is {:?} {:?}", var.dims(), var.dtype())
        });
        let optimizer = core.accumulator.optimizer().describe();
        model.chain(options).chain(optimizer).collect::<Vec<_>>()
    };
    let (mut core, plans) = group.agree(CALL, core, plan)?;
    compare(&plans)?;
    let device = core.accumulator.device();
    let Some(engine) = group.collectives(&device)? else {
        return Ok(core);
    };
    let watch = group.watch("copy parameters");
    for Parameter { var, .. } in model(&core) {
        engine.exchange(&var, Operation::Broadcast { from: 0 }, &watch)?;
    }
    engine.finish(&watch)?;
    // What follows can run out of memory on one rank alone.
    let placed = place(&mut core, group, engine, settings);
    group.agree(CALL, placed, |()| ()).map(|_| core)
}

/// Allocates what is exchanged, and the state that this rank keeps.
fn place<O: Commit>(
    core: &mut Core<O>,
    group: &Group,
    engine: Arc<dyn Collectives>,
    settings: Settings,
) -> Result<()> {
    let layout = Layout::new(group.size(), engine.bucket());
    let slots = &mut core.accumulator.slots;
    slots.layout = Some(layout);
    slots.place()?;
    core.ranks = Some(Ranks::new(group, engine, &settings));
    core.shard()
}

/// All parameters, frozen ones included, and named buffers.
fn model<O: Commit>(core: &Core<O>) -> Vec<Parameter> {
    let optimizer = core.accumulator.optimizer();
    let mut model = optimizer.parameters().to_vec();
    model.extend(optimizer.frozen());
    let named =
        |(index, var): (usize, &Var)| Parameter::new(format!("buffers.{index}"), var.clone());
    let buffers: Vec<_> = core.buffers().enumerate().map(named).collect();
    model.extend(buffers);
    model
}

/// Fails if a rank has another plan than rank 0.
fn compare(plans: &[Vec<String>]) -> Result<()> {
    let Some(first) = plans.first() else {
        return Ok(());
    };
    let mut differences = Vec::new();
    for (rank, plan) in plans.iter().enumerate().filter(|(_, plan)| *plan != first) {
        let more = plan.iter().filter(|line| !first.contains(line));
        differences.extend(more.map(|line| format!("on rank {rank} {line}")));
        let less = first.iter().filter(|line| !plan.contains(line));
        differences.extend(less.map(|line| format!("not on rank {rank}: {line}")));
        if differences.is_empty() {
            differences.push(format!("rank {rank} has its parameters in another order"));
        }
    }
    match differences.is_empty() {
        true => Ok(()),
        false => Err(different("model or options", differences)),
    }
}
