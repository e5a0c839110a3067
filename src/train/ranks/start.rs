use std::sync::Arc;

use candle_core::Var;

use super::reduce::Ranks;
use crate::distributed::{Collectives, Group, Operation};
use crate::error::{GroupError, Result};
use crate::optim::{Commit, Parameter};
use crate::train::core::Core;
use crate::train::flat::Layout;

/// The name of the call in which ranks meet.
const CALL: &str = "build a trainer";

/// Makes this trainer one of the group's: the ranks compare what they train, and take rank 0's parameters.
pub(in crate::train) fn join<O: Commit>(
    core: Result<Core<O>>,
    group: &Group,
    options: Vec<String>,
    compare_every: u64,
) -> Result<Core<O>> {
    if group.size() == 1 {
        return core;
    }
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
    let placed = place(&mut core, group, engine, compare_every);
    group.agree(CALL, placed, |()| ()).map(|_| core)
}

/// Allocates what is exchanged, and the state that this rank keeps.
fn place<O: Commit>(
    core: &mut Core<O>,
    group: &Group,
    engine: Arc<dyn Collectives>,
    compare_every: u64,
) -> Result<()> {
    let layout = Layout::new(group.size(), engine.bucket());
    core.accumulator.slots.lay_out(layout)?;
    core.ranks = Some(Ranks::new(group, engine, compare_every));
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
        false => Err(GroupError::different("model or options", differences).into()),
    }
}
