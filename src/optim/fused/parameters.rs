use std::collections::HashMap;

use super::check;
use super::managed::{Managed, Origin};
use crate::optim::cpu::is_shared;
use crate::optim::{GroupOptions, Parameter};

/// The parameters of an optimizer, and which of them it updates.
#[derive(Debug)]
pub struct Parameters {
    /// All of them, in the order in which they were given.
    pub all: Vec<Managed>,
    /// Those that are not frozen, in the engine's order: large ones first, since those are shared out among threads one by one.
    pub updated: Vec<Managed>,
    /// The same as the user sees them, in the order in which they were given.
    pub names: Vec<Parameter>,
    /// The memory of all parameters, sorted.
    pub memory: Vec<usize>,
}

impl Parameters {
    pub fn new(all: Vec<Managed>, groups: &[GroupOptions]) -> Self {
        let mut memory: Vec<_> = all.iter().map(|p| check::memory(&p.var)).collect();
        memory.sort_unstable();
        let mut parameters = Self {
            all,
            updated: Vec::new(),
            names: Vec::new(),
            memory,
        };
        let updated = parameters.without_frozen(groups);
        parameters.set_updated(updated);
        parameters
    }

    /// What would be updated with these options, in the engine's order.
    pub fn without_frozen(&self, groups: &[GroupOptions]) -> Vec<Managed> {
        let is_frozen = |group: usize| groups.get(group).is_some_and(|options| options.frozen);
        let updated = self.all.iter().filter(|p| !is_frozen(p.group));
        let mut updated: Vec<_> = updated.cloned().collect();
        updated.sort_by_key(|parameter| !is_shared(parameter.len));
        updated
    }

    /// For each of these parameters: the state that there is, or a fresh one.
    pub fn origins(&self, updated: &[Managed]) -> Vec<Origin> {
        let places = self.updated.iter().map(|parameter| parameter.place);
        let places: HashMap<_, _> = places.zip(0..).collect();
        let origins = updated.iter().map(|parameter| {
            let index = places.get(&parameter.place).copied();
            index.map_or(Origin::Fresh, Origin::Kept)
        });
        origins.collect()
    }

    pub fn set_updated(&mut self, updated: Vec<Managed>) {
        let mut in_order: Vec<_> = updated.iter().collect();
        in_order.sort_by_key(|parameter| parameter.place);
        let in_order = in_order.into_iter();
        let names = in_order.map(|p| Parameter::new(&p.name, p.var.clone()));
        self.names = names.collect();
        self.updated = updated;
    }
}
