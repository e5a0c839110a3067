//! Each remedy of an exhaustion saves what the error says.

use candle_headroom::DeviceMemory;

use crate::support::alone;
use crate::support::remedies::try_all;

#[test]
fn each_remedy_saves_what_is_said() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let outcomes = try_all(&memory).unwrap();
    for outcome in &outcomes {
        println!("{outcome:?} {:.3}", outcome.error());
    }
    assert_eq!(outcomes.len(), 7);
    for outcome in outcomes {
        assert!(outcome.error() <= 0.1, "{outcome:?}");
    }
}
