use candle_headroom::nn::VarBuilder;

use super::lora::Lora;

/// PEFT's name of the model that has adapters.
const PREFIX: &str = "base_model.model";

/// Where in a model a layer is: its parameters, and those of its adapter.
#[derive(Clone)]
pub struct Place<'a> {
    /// At this path.
    pub base: VarBuilder<'a>,
    adapters: Option<(&'a Lora, VarBuilder<'a>)>,
}

impl<'a> Place<'a> {
    pub fn new(base: VarBuilder<'a>, adapters: Option<(&'a Lora, VarBuilder<'a>)>) -> Self {
        let adapters = adapters.map(|(lora, adapters)| (lora, adapters.pp(PREFIX)));
        Self { base, adapters }
    }

    pub fn pp(&self, name: &str) -> Self {
        let adapters = self.adapters.as_ref();
        Self {
            base: self.base.pp(name),
            adapters: adapters.map(|(lora, adapters)| (*lora, adapters.pp(name))),
        }
    }

    /// The parameters of this layer's adapter, if it has one.
    pub fn adapter(&self) -> Option<(&'a Lora, &VarBuilder<'a>)> {
        let (lora, adapters) = self.adapters.as_ref()?;
        let path = adapters.prefix();
        let path = path.strip_prefix(PREFIX)?.trim_start_matches('.');
        lora.applies_to(path).then_some((*lora, adapters))
    }
}
