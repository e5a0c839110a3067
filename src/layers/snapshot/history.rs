//! Events in an order that a viewer can follow, and what is live at their end.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use super::event::Event;
use super::recording::Recorded;
use crate::memory::HostEvent;

pub(super) struct History {
    pub(super) events: Vec<Event>,
    /// The blocks that were allocated by these events and are live after them, by address, with their sizes.
    pub(super) live: BTreeMap<usize, (usize, Event)>,
    /// Bytes of blocks that are neither allocated nor freed by these events.
    pub(super) others: u64,
    /// Microseconds from 1970 to the beginning and to the end of the recording.
    pub(super) began: u64,
    pub(super) ended: u64,
}

impl History {
    pub(super) fn of(recorded: Recorded) -> Self {
        let mut events = Vec::with_capacity(recorded.events.len());
        let mut live = BTreeMap::new();
        for event in recorded.events {
            match event.what {
                HostEvent::Allocated { address, bytes } => {
                    let gone = overlapping(&live, address, bytes);
                    for (address, bytes) in gone {
                        live.remove(&address);
                        let what = HostEvent::Freed { address, bytes };
                        events.push(Event { what, ..event });
                    }
                    live.insert(address, (bytes, event));
                }
                HostEvent::Freed { address, .. } => {
                    live.remove(&address);
                }
                HostEvent::Exhausted { .. } => {}
            }
            events.push(event);
        }
        let sizes = live.values().map(|(bytes, _)| *bytes as u64);
        let known = sizes.fold(0, u64::saturating_add);
        let began = recorded.began.duration_since(UNIX_EPOCH);
        let began = began.map_or(0, |time| time.as_micros() as u64);
        Self {
            events,
            live,
            others: recorded.in_use.saturating_sub(known),
            began,
            ended: began.saturating_add(recorded.nanoseconds / 1000),
        }
    }
}

/// Live blocks in this range. Their release was not kept: it came while another event was written to its place in the ring.
fn overlapping(
    live: &BTreeMap<usize, (usize, Event)>,
    address: usize,
    bytes: usize,
) -> Vec<(usize, usize)> {
    let below = live.range(..address.saturating_add(bytes)).rev();
    below
        .map(|(start, (bytes, _))| (*start, *bytes))
        .take_while(|(start, bytes)| start.saturating_add(*bytes) > address)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn history(events: &[HostEvent], in_use: u64) -> History {
        let event = |what: &HostEvent| Event::here(*what, 5_000);
        History::of(Recorded {
            events: events.iter().map(event).collect(),
            dropped: 0,
            in_use,
            began: SystemTime::now(),
            nanoseconds: 7_000,
        })
    }

    #[test]
    fn a_block_at_the_place_of_a_live_one_means_that_it_was_freed() {
        let block = |address, bytes| HostEvent::Allocated { address, bytes };
        let freed = |address, bytes| HostEvent::Freed { address, bytes };
        let recorded = [
            block(100, 10),
            block(110, 10),
            block(120, 10),
            block(105, 10),
        ];
        let history = history(&recorded, 50);
        let events: Vec<_> = history.events.iter().map(|event| event.what).collect();
        let (second, first) = (freed(110, 10), freed(100, 10));
        let expected = [&recorded[..3], &[second, first], &recorded[3..]].concat();
        assert_eq!(events, expected);
        let live: Vec<_> = history.live.keys().copied().collect();
        assert_eq!((live, history.others), (vec![105, 120], 30));
        assert_eq!(history.ended - history.began, 7);
    }

    #[test]
    fn what_came_before_is_counted_with_others() {
        let address = 4096;
        let freed = HostEvent::Freed { address, bytes: 8 };
        let history = history(&[freed, freed], 100);
        assert_eq!((history.events.len(), history.others), (2, 100));
    }
}
