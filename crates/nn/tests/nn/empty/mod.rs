mod layers;

use candle_core::{Device, Result};

#[test]
fn layers_of_an_empty_view_leave_the_var_alone() -> Result<()> {
    layers::leave_their_vars_alone(&Device::Cpu)
}
