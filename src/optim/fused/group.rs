use candle_core::Var;
use candle_nn::VarMap;

/// Parameters that are treated alike.
///
/// It is made from a list of Vars, from named ones, or from a [`VarMap`] (all of them, in the order of their names). Names are
/// what saved state is found by: `varmap.all_vars()` comes in another order in each run.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom::{AdamW, Group, ParamsAdamW};
/// use candle_nn::{linear, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let (matrices, rest) = Group::from(&varmap).partition(|_, var| var.rank() > 1);
/// let optimizer = AdamW::builder(ParamsAdamW::default())
///     .group(matrices)
///     .group(rest.weight_decay(0.).learning_rate_factor(0.1))
///     .build()?;
/// assert_eq!(optimizer.group(1)?.weight_decay, Some(0.));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Group {
    pub(super) parameters: Vec<(Option<String>, Var)>,
    pub(super) options: GroupOptions,
}

/// How a group is treated; see [`Fused::set_group`](super::Fused::set_group).
///
/// ```
/// use candle_headroom::GroupOptions;
///
/// assert_eq!(GroupOptions::default().learning_rate_factor, 1.);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupOptions {
    /// What the optimizer's learning rate is multiplied by, so that a schedule moves all groups.
    pub learning_rate_factor: f64,
    /// The group's own weight decay; `None` for the optimizer's.
    pub weight_decay: Option<f64>,
    /// Whether its parameters stand still. Their gradients do not count for the norm then.
    pub is_frozen: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            learning_rate_factor: 1.,
            weight_decay: None,
            is_frozen: false,
        }
    }
}

impl Group {
    /// Multiplies the optimizer's learning rate by this, for these parameters.
    pub fn learning_rate_factor(mut self, factor: f64) -> Self {
        self.options.learning_rate_factor = factor;
        self
    }

    /// Their own weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.options.weight_decay = Some(weight_decay);
        self
    }

    /// Lets them stand still until [`Fused::set_group`](super::Fused::set_group) says otherwise.
    pub fn frozen(mut self) -> Self {
        self.options.is_frozen = true;
        self
    }

    /// Those for which `is_first` holds, and the others; a parameter without a name is asked for as `""`.
    pub fn partition(self, mut is_first: impl FnMut(&str, &Var) -> bool) -> (Self, Self) {
        let options = self.options;
        let (first, second) = (self.parameters.into_iter())
            .partition(|(name, var)| is_first(name.as_deref().unwrap_or_default(), var));
        let group = |parameters| Self {
            parameters,
            options,
        };
        (group(first), group(second))
    }
}

impl From<Vec<Var>> for Group {
    fn from(vars: Vec<Var>) -> Self {
        vars.into_iter().collect()
    }
}

impl<N: Into<String>> From<Vec<(N, Var)>> for Group {
    fn from(vars: Vec<(N, Var)>) -> Self {
        vars.into_iter().collect()
    }
}

impl From<&VarMap> for Group {
    fn from(varmap: &VarMap) -> Self {
        // What a panicking thread left behind is still a list of Vars.
        let data = (varmap.data().lock()).unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut named: Vec<_> = data
            .iter()
            .map(|(name, var)| (name.clone(), var.clone()))
            .collect();
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        named.into()
    }
}

impl FromIterator<Var> for Group {
    fn from_iter<I: IntoIterator<Item = Var>>(vars: I) -> Self {
        Self {
            parameters: vars.into_iter().map(|var| (None, var)).collect(),
            options: GroupOptions::default(),
        }
    }
}

impl<N: Into<String>> FromIterator<(N, Var)> for Group {
    fn from_iter<I: IntoIterator<Item = (N, Var)>>(vars: I) -> Self {
        let vars = vars.into_iter().map(|(name, var)| (Some(name.into()), var));
        Self {
            parameters: vars.collect(),
            options: GroupOptions::default(),
        }
    }
}
