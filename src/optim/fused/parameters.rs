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
        let mut memory: Vec<_> = all
            .iter()
            .map(|parameter| check::memory(&parameter.var))
            .collect();
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
        let updated = self.all.iter();
        let mut updated: Vec<_> = updated
            .filter(|parameter| !is_frozen(parameter.group))
            .cloned()
            .collect();
        updated.sort_by_key(|parameter| !is_shared(parameter.len));
        updated
    }

    /// For each of these parameters: the state that there is, or a fresh one.
    pub fn origins(&self, updated: &[Managed]) -> Vec<Origin> {
        let places = self.updated.iter().map(|parameter| parameter.place);
        let places: HashMap<_, _> = places.zip(0..).collect();
        let updated = updated.iter();
        let origins = updated.map(|parameter| match places.get(&parameter.place) {
            Some(index) => Origin::Kept(*index),
            None => Origin::Fresh,
        });
        origins.collect()
    }

    pub fn set_updated(&mut self, updated: Vec<Managed>) {
        let mut in_order: Vec<_> = updated.iter().collect();
        in_order.sort_by_key(|parameter| parameter.place);
        let in_order = in_order.into_iter();
        self.names = in_order
            .map(|managed| Parameter::new(&managed.name, managed.var.clone()))
            .collect();
        self.updated = updated;
    }
}
