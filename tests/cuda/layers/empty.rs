#[path = "../../../crates/nn/tests/nn/empty/layers.rs"]
mod layers;

use candle_core::{Device, Result};

use crate::gpu::gpu;

#[test]
fn layers_of_an_empty_view_leave_the_var_alone() -> Result<()> {
    let gpu = gpu();
    layers::leave_their_vars_alone(&Device::new_cuda_with_stream(gpu.ordinal)?)
}
