//! The execution of one warp: which lanes run which instruction next.
//!
//! Lanes that took different branches form groups. The group that is furthest behind runs first, so that groups meet again where
//! their branches join.

use super::kernel::Fault;
use super::memory::{Access, lanes_of};
use super::registers::{Frame, LANES, Slot};
use super::space::Space;
use super::steps::Step;

/// A decoded instruction.
pub struct Instruction {
    /// The predicate that must be true, or false if the flag beside it is `true`.
    pub guard: Option<(Slot, bool)>,
    pub action: Action,
}

/// The effect of an instruction.
pub enum Action {
    Step(Step),
    Access(Access),
    Branch(usize),
    /// A branch to one of several targets, chosen by a register's value.
    Switch(Slot, Vec<usize>),
    /// Enters a function and writes its return address into the register.
    Call(usize, Slot),
    /// Leaves a function for the address in the register.
    Return(Slot),
    Exit,
    /// Waits until this many threads (all of the block, if `None`) wait at the barrier with this number.
    Barrier(Slot, Option<Slot>),
    /// Waits until these lanes have all arrived, then computes.
    Together(Slot, Step),
    Trap,
    /// A failed assertion: message, file, line, function.
    Assert([Slot; 4]),
}

/// Lanes that run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    next: usize,
    mask: u32,
}

/// Lanes that wait at a barrier.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    next: usize,
    pub mask: u32,
    pub barrier: u32,
    /// Number of threads of the barrier; all of the block, if `None`.
    pub threads: Option<u32>,
}

/// The positions of a warp's lanes.
#[derive(Debug, Default)]
pub struct Warp {
    /// Groups that can run, in descending order of `next`; the last one runs.
    running: Vec<Group>,
    /// Groups that wait for other lanes of the warp, with the instruction at which they wait.
    parked: Vec<Group>,
    /// Groups that wait for other threads of the block.
    pub waiting: Vec<Waiting>,
    /// The number of instructions that it may still execute.
    left: u64,
}

impl Warp {
    /// A warp whose lanes in `mask` run instruction `start` next, and that may execute so many instructions.
    pub fn new(start: usize, mask: u32, instructions: u64) -> Warp {
        Warp {
            running: vec![Group { next: start, mask }],
            left: instructions,
            ..Warp::default()
        }
    }

    /// Whether no lane is left.
    pub fn finished(&self) -> bool {
        self.running.is_empty() && self.parked.is_empty() && self.waiting.is_empty()
    }

    /// Releases the lanes that wait at this barrier.
    pub fn release(&mut self, barrier: u32) {
        for index in (0..self.waiting.len()).rev() {
            if self.waiting[index].barrier == barrier {
                let Waiting { next, mask, .. } = self.waiting.swap_remove(index);
                self.insert(Group { next, mask });
            }
        }
    }

    /// Inserts a group by its position, joined with a group that is there already.
    fn insert(&mut self, mut group: Group) {
        if group.mask == 0 {
            return;
        }
        self.parked.retain(|parked| {
            let joins = parked.next == group.next;
            if joins {
                group.mask |= parked.mask;
            }
            !joins
        });
        match self
            .running
            .binary_search_by(|other| group.next.cmp(&other.next))
        {
            Ok(index) => self.running[index].mask |= group.mask,
            Err(index) => self.running.insert(index, group),
        }
    }

    fn live(&self) -> u32 {
        let running = self
            .running
            .iter()
            .chain(&self.parked)
            .fold(0, |all, group| all | group.mask);
        self.waiting
            .iter()
            .fold(running, |all, group| all | group.mask)
    }

    /// Runs until every lane has left or waits at a barrier.
    pub fn run(
        &mut self,
        code: &[Instruction],
        frame: Frame,
        space: &mut Space,
    ) -> Result<(), Fault> {
        while let Some(group) = self.running.pop() {
            self.run_group(group, code, frame, space)?;
        }
        if self.parked.is_empty() {
            return Ok(());
        }
        Err(Fault::Hang(
            "lanes of a warp wait for lanes that are elsewhere".to_owned(),
        ))
    }

    /// Runs one group until its lanes change or it is no longer the furthest behind.
    fn run_group(
        &mut self,
        Group { mut next, mask }: Group,
        code: &[Instruction],
        frame: Frame,
        space: &mut Space,
    ) -> Result<(), Fault> {
        // The position of the next group, or of a waiting one that this one may join.
        let ahead = self.running.last().map_or(usize::MAX, |group| group.next);
        let joins = !self.parked.is_empty();
        let mut first = true;
        loop {
            if !first && (next >= ahead || joins) {
                self.insert(Group { next, mask });
                return Ok(());
            }
            first = false;
            let Some(instruction) = code.get(next) else {
                return Err(Fault::Unsupported("code that runs past its end".to_owned()));
            };
            self.left = self.left.checked_sub(1).ok_or(Fault::Endless)?;
            let active = match instruction.guard {
                None => mask,
                Some((slot, false)) => mask & frame.mask(slot),
                Some((slot, true)) => mask & !frame.mask(slot),
            };
            if active == 0 {
                next += 1;
                continue;
            }
            match &instruction.action {
                Action::Step(step) => step(frame, active),
                Action::Access(access) => access(frame, space, active)?,
                Action::Branch(target) if active == mask => {
                    next = *target;
                    continue;
                }
                Action::Together(members, step) => {
                    let members = frame.lane::<u32>(*members, lanes_of(active).next().unwrap_or(0));
                    let missing = members & (self.live() | mask) & !mask;
                    if missing != 0 {
                        self.parked.push(Group { next, mask });
                        return Ok(());
                    }
                    step(frame, active);
                }
                action => {
                    let gone = self.leave(action, next, active, frame, space)?;
                    self.insert(Group {
                        next: next + 1,
                        mask: mask & !gone,
                    });
                    return Ok(());
                }
            }
            next += 1;
        }
    }

    /// Moves lanes of `active` to another instruction, and returns which.
    fn leave(
        &mut self,
        action: &Action,
        here: usize,
        active: u32,
        frame: Frame,
        space: &mut Space,
    ) -> Result<u32, Fault> {
        match action {
            Action::Step(_) | Action::Access(_) | Action::Together(..) => return Ok(0),
            Action::Branch(target) => self.insert(Group {
                next: *target,
                mask: active,
            }),
            Action::Switch(slot, targets) => {
                for lane in lanes_of(active) {
                    let index = frame.lane::<u32>(*slot, lane) as usize;
                    let target = targets.get(index).copied();
                    let next = target
                        .ok_or_else(|| Fault::Unsupported("brx beyond its table".to_owned()))?;
                    self.insert(Group {
                        next,
                        mask: 1 << lane,
                    });
                }
            }
            Action::Call(target, back) => {
                frame.write(*back, &[here as u32 + 1; LANES], active);
                self.insert(Group {
                    next: *target,
                    mask: active,
                });
            }
            Action::Return(back) => {
                for lane in lanes_of(active) {
                    self.insert(Group {
                        next: frame.lane::<u32>(*back, lane) as usize,
                        mask: 1 << lane,
                    });
                }
            }
            Action::Exit => {}
            Action::Barrier(barrier, threads) => {
                let first = lanes_of(active).next().unwrap_or(0);
                self.waiting.push(Waiting {
                    next: here + 1,
                    mask: active,
                    barrier: frame.lane(*barrier, first),
                    threads: threads.map(|slot| frame.lane(slot, first)),
                });
            }
            Action::Trap => return Err(Fault::Assert("trap".to_owned())),
            Action::Assert(slots) => return Err(assertion(slots, active, frame, space)),
        }
        Ok(active)
    }
}

fn assertion(
    [message, file, line, function]: &[Slot; 4],
    active: u32,
    frame: Frame,
    space: &Space,
) -> Fault {
    let lane = lanes_of(active).next().unwrap_or(0);
    let text = |slot: Slot| space.text(frame.lane(slot, lane));
    let line: u32 = frame.lane(*line, lane);
    Fault::Assert(format!(
        "{}:{line}: {}: `{}`",
        text(*file),
        text(*function),
        text(*message)
    ))
}
