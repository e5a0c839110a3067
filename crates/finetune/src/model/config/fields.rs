use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The entries of a JSON object. `null` counts as missing.
pub struct Fields(Map<String, Value>);

impl Fields {
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self(serde_json::from_str(text)?))
    }

    pub fn within(&self, name: &str) -> Result<Option<Self>> {
        Ok(self.optional(name)?.map(Self))
    }

    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn optional<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let value = self.0.get(name).filter(|value| !value.is_null());
        let value = value.map(|value| T::deserialize(value)).transpose();
        value.with_context(|| format!("`{name}`"))
    }

    pub fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.optional(name)?;
        value.with_context(|| format!("`{name}` is missing"))
    }

    /// False if it is missing.
    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.optional(name)?.unwrap_or(false))
    }

    /// No token, one, or a list of them.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        match self.0.get(name) {
            Some(Value::Array(_)) => self.required(name),
            _ => Ok(self.optional(name)?.into_iter().collect()),
        }
    }

    /// Refuses options that change what a model computes and that are not supported.
    pub fn check(&self) -> Result<()> {
        let act = self.optional::<String>("hidden_act")?;
        if let Some(act) = act.filter(|act| act != "silu") {
            bail!("`hidden_act` is `{act}`, supported is silu")
        }
        for (name, usual) in [("attention_dropout", 0.), ("partial_rotary_factor", 1.)] {
            let value = self.optional::<f64>(name)?;
            if let Some(value) = value.filter(|value| *value != usual) {
                bail!("`{name}` is {value}, supported is {usual}")
            }
        }
        if self.optional::<Value>("quantization_config")?.is_some() {
            bail!("`quantization_config`: the weights are quantized, which is not supported")
        }
        Ok(())
    }
}
