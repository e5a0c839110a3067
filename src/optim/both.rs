//! Two optimizers as one: the checks of both come before the first one moves a parameter.

use std::collections::{BTreeMap, HashSet};

use candle_core::Tensor;
use candle_core::backprop::GradStore;

use super::commit::not_sharded;
use super::{Commit, Committed, Parameter, StateDict};
use crate::error::{Remedy, Result, StateError, UpdateInterrupted, invalid, listed_twice};

/// Two optimizers that make one update together, for models whose parts are trained differently: an actor and a critic, the two
/// networks of a GAN, an embedding by [`Sgd`](super::Sgd) beside layers by [`AdamW`](super::AdamW). Of three, make a `Both` of a `Both`.
///
/// An update moves the parameters of both or of neither: the checks of both come before the first one moves anything. Should the second
/// fail after that, the error is [`UpdateInterrupted`]: on the CPU only a panic of a fused optimizer leaves that possible; a GPU may also
/// refuse what the second one queues, and a [`Foreign`](super::Foreign) allocates as it goes. Each clips by the norm of its own gradients, and skips a step by itself.
///
/// Saved state has the entries of each optimizer under its name, as in `actor.hidden.weight.exp_avg`. Parameters keep their names, which
/// have to be distinct.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::{Both, Commit};
/// use candle_headroom::{AdamW, Sgd};
///
/// let policy = Var::new(3f32, &Device::Cpu)?;
/// let value = Var::new(2f32, &Device::Cpu)?;
/// let actor = AdamW::builder(vec![("policy", policy.clone())]).learning_rate(1e-3).build()?;
/// let critic = Sgd::builder(vec![("value", value.clone())]).learning_rate(0.1).build()?;
/// let mut optimizer = Both::new(("actor", actor), ("critic", critic))?;
/// optimizer.commit(&(policy.sqr()? + value.sqr()?)?.backward()?)?;
/// assert_eq!(value.to_scalar::<f32>()?, 2. - 0.1 * 4.);
///
/// // Each has its own learning rate, groups and counters.
/// optimizer.change(|actor, critic| {
///     actor.set_learning_rate(5e-4);
///     critic.set_learning_rate(0.05);
/// });
/// assert_eq!(optimizer.first().progress()?.steps, 1);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct Both<A, B> {
    first: A,
    second: B,
    names: [String; 2],
    /// Those of the first, then those of the second.
    parameters: Vec<Parameter>,
}

impl<A: Commit, B: Commit> Both<A, B> {
    /// Makes one optimizer of two, each with the name that its saved state gets.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Both;
    ///
    /// let sgd = |name: &str, var: &Var| Sgd::builder(vec![(name, var.clone())]).build();
    /// let [a, b] = [Var::new(1f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?];
    /// assert!(Both::new(("generator", sgd("a", &a)?), ("discriminator", sgd("b", &b)?)).is_ok());
    ///
    /// // Saved state would not tell them apart.
    /// let error = Both::new(("gan", sgd("a", &a)?), ("gan", sgd("b", &b)?)).unwrap_err();
    /// assert_eq!(error.to_string(), "both optimizers of `Both` have the name `gan`: give each its own");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name that is empty or has a dot, one name for both, two parameters of one name, or an optimizer that divides its state among
    /// ranks ([`is_optimizer`](crate::Error::is_optimizer)); both have the same Var ([`is_parameter`](crate::Error::is_parameter)).
    pub fn new(
        (first_name, first): (impl Into<String>, A),
        (second_name, second): (impl Into<String>, B),
    ) -> Result<Self> {
        let names = [first_name.into(), second_name.into()];
        if let Some(name) = names
            .iter()
            .find(|name| name.is_empty() || name.contains('.'))
        {
            return Err(invalid!(
                Optimizer,
                "an optimizer of `Both` cannot have the name `{name}`: give it one without a dot"
            ));
        }
        let [first_name, second_name] = &names;
        if first_name == second_name {
            return Err(invalid!(
                Optimizer,
                "both optimizers of `Both` have the name `{first_name}`: give each its own"
            ));
        }
        if first.is_sharded() || second.is_sharded() {
            let reason = "build its optimizers without `sharded()`";
            return Err(not_sharded("Both", reason));
        }
        let mut both = Self {
            first,
            second,
            names,
            parameters: Vec::new(),
        };
        both.follow();
        both.check_parameters()?;
        Ok(both)
    }

    /// The first optimizer.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::optim::Both;
    /// # use candle_headroom::{AdamW, Sgd};
    /// # let (policy, value) = (Var::new(3f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?);
    /// # let actor = AdamW::builder(vec![("policy", policy)]).learning_rate(1e-3).build()?;
    /// # let critic = Sgd::builder(vec![("value", value)]).learning_rate(0.1).build()?;
    /// let optimizer = Both::new(("actor", actor), ("critic", critic))?;
    /// assert_eq!(optimizer.first().learning_rate(), 1e-3);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn first(&self) -> &A {
        &self.first
    }

    /// The second optimizer.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::optim::Both;
    /// # use candle_headroom::{AdamW, Sgd};
    /// # let (policy, value) = (Var::new(3f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?);
    /// # let actor = AdamW::builder(vec![("policy", policy)]).learning_rate(1e-3).build()?;
    /// # let critic = Sgd::builder(vec![("value", value)]).learning_rate(0.1).build()?;
    /// let optimizer = Both::new(("actor", actor), ("critic", critic))?;
    /// assert_eq!(optimizer.second().learning_rate(), 0.1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn second(&self) -> &B {
        &self.second
    }

    /// Changes the optimizers, for example their learning rates or groups, and returns what `change` returns.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// use candle_headroom::optim::{Both, Commit, GroupOptions};
    /// # use candle_headroom::{AdamW, Sgd};
    /// # let (policy, value) = (Var::new(3f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?);
    /// # let actor = AdamW::builder(vec![("policy", policy)]).learning_rate(1e-3).build()?;
    /// # let critic = Sgd::builder(vec![("value", value)]).learning_rate(0.1).build()?;
    ///
    /// let mut optimizer = Both::new(("actor", actor), ("critic", critic))?;
    /// optimizer.change(|_, critic| critic.set_group(0, GroupOptions::default().frozen(true)))?;
    /// assert_eq!(optimizer.parameters()[0].name, "policy");
    /// assert_eq!(optimizer.frozen()[0].name, "value");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn change<T>(&mut self, change: impl FnOnce(&mut A, &mut B) -> T) -> T {
        let changed = change(&mut self.first, &mut self.second);
        self.follow();
        changed
    }

    /// Returns the optimizers.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::optim::Both;
    /// # use candle_headroom::{AdamW, Sgd};
    /// # let (policy, value) = (Var::new(3f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?);
    /// # let actor = AdamW::builder(vec![("policy", policy)]).learning_rate(1e-3).build()?;
    /// # let critic = Sgd::builder(vec![("value", value)]).learning_rate(0.1).build()?;
    /// let optimizer = Both::new(("actor", actor), ("critic", critic))?;
    /// let (actor, critic) = optimizer.into_inner();
    /// assert_eq!((actor.learning_rate(), critic.learning_rate()), (1e-3, 0.1));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn into_inner(self) -> (A, B) {
        (self.first, self.second)
    }

    /// Both, with their names.
    fn each(&self) -> [(&str, &dyn Commit); 2] {
        let [first, second] = &self.names;
        [(first, &self.first), (second, &self.second)]
    }

    fn follow(&mut self) {
        let (first, second) = (self.first.parameters(), self.second.parameters());
        self.parameters = first.iter().chain(second).cloned().collect();
    }

    fn check_parameters(&self) -> Result<()> {
        let (mut vars, mut names) = (HashSet::new(), HashSet::new());
        for Parameter { name, var } in self.parameters.iter().chain(&self.frozen()) {
            if !vars.insert(var.id()) {
                return Err(listed_twice(name));
            }
            if !names.insert(name.clone()) {
                return Err(invalid!(
                    Optimizer,
                    "two parameters have the name `{name}`: give each its own"
                ));
            }
        }
        Ok(())
    }

    /// The parts of saved state that belong to each optimizer. Metadata of others, such as a trainer's, is left out.
    fn split(&self, state: &StateDict) -> Result<[StateDict; 2]> {
        let is_own = |key: &str| self.names.iter().any(|name| strip(key, name).is_some());
        let unexpected = state.tensors.keys().filter(|key| !is_own(key));
        let unexpected: Vec<_> = unexpected.cloned().collect();
        if !unexpected.is_empty() {
            return Err(StateError {
                unexpected,
                ..StateError::default()
            }
            .into());
        }
        Ok(self.names.each_ref().map(|name| StateDict {
            tensors: part(&state.tensors, name),
            metadata: part(&state.metadata, name),
        }))
    }
}

/// The key within the state of the optimizer with this name.
fn strip<'k>(key: &'k str, name: &str) -> Option<&'k str> {
    key.strip_prefix(name)?.strip_prefix('.')
}

/// The entries of the optimizer with this name, as they are saved.
fn named<T>(name: &str, all: BTreeMap<String, T>) -> impl Iterator<Item = (String, T)> {
    let named = move |(key, value): (String, T)| (format!("{name}.{key}"), value);
    all.into_iter().map(named)
}

fn part<T: Clone>(all: &BTreeMap<String, T>, name: &str) -> BTreeMap<String, T> {
    let own = |(key, value): (&String, &T)| Some((strip(key, name)?.to_owned(), value.clone()));
    all.iter().filter_map(own).collect()
}

impl<A: Commit, B: Commit> Commit for Both<A, B> {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn frozen(&self) -> Vec<Parameter> {
        let each = self.each().into_iter();
        each.flat_map(|(_, one)| one.frozen()).collect()
    }

    fn check(&mut self, gradients: &GradStore) -> Result<()> {
        self.first.check(gradients)?;
        self.second.check(gradients)
    }

    /// [`Committed::Applied`] if one of them was applied.
    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        self.check(gradients)?;
        let first = self.first.commit(gradients)?;
        let second = self
            .second
            .commit(gradients)
            .map_err(UpdateInterrupted::with)?;
        Ok(match (first, second) {
            (Committed::Applied, _) | (_, Committed::Applied) => Committed::Applied,
            (Committed::Skipped, Committed::Skipped) => Committed::Skipped,
            _ => Committed::Unknown,
        })
    }

    fn describe(&self) -> Vec<String> {
        let lines = self.each().into_iter().flat_map(|(name, one)| {
            let lines = one.describe().into_iter();
            lines.map(move |line| format!("{name}: {line}"))
        });
        lines.collect()
    }

    /// Returns the loss: there is one for both.
    ///
    /// # Errors
    /// If an optimizer has a loss scale, which would scale the other's gradients too ([`is_optimizer`](crate::Error::is_optimizer)).
    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        for (_, one) in self.each() {
            if one.scale_loss(loss)?.id() != loss.id() {
                return Err(invalid!(
                    Optimizer,
                    "the optimizers of `Both` share one loss, so none of them can have a loss scale: build them without `loss_scale`"
                ));
            }
        }
        Ok(loss.clone())
    }

    fn is_restored(&self) -> bool {
        self.each().iter().all(|(_, one)| one.is_restored())
    }

    fn takes_f32(&self) -> bool {
        self.each().iter().all(|(_, one)| one.takes_f32())
    }

    /// That of both; `None` if they differ.
    fn learning_rate(&self) -> Option<f64> {
        let first = self.first.learning_rate();
        first.filter(|_| first == self.second.learning_rate())
    }

    fn gradient_norm(&self) -> Option<f64> {
        let norms = self.each().into_iter().map(|(_, one)| one.gradient_norm());
        let squares = norms.map(|norm| norm.map(|norm| norm * norm));
        Some(squares.sum::<Option<f64>>()?.sqrt())
    }

    fn remedies(&self) -> Vec<Remedy> {
        let remedies = self.each().into_iter().flat_map(|(name, one)| {
            let named = move |it: Remedy| Remedy::new(format!("{name}: {}", it.advice), it.saves);
            one.remedies().into_iter().map(named)
        });
        remedies.collect()
    }

    fn state_bytes(&self) -> Option<u64> {
        let bytes = self.each().map(|(_, one)| one.state_bytes());
        bytes.into_iter().sum()
    }

    /// The state of both, each under its name.
    fn state(&self) -> Result<StateDict> {
        let mut both = StateDict::default();
        for (name, one) in self.each() {
            let state = one.state()?;
            both.tensors.extend(named(name, state.tensors));
            both.metadata.extend(named(name, state.metadata));
        }
        Ok(both)
    }

    /// Continues from the saved state of both. A copy of the first one's lies in host memory meanwhile.
    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        let [first, second] = self.split(state)?;
        let before = self.first.state()?;
        self.first.load_state(&first)?;
        let loaded = self.second.load_state(&second);
        if loaded.is_err() {
            self.first
                .load_state(&before)
                .map_err(UpdateInterrupted::with)?;
        }
        self.follow();
        loaded
    }
}
