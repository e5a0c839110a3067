//! Times in UTC, as people write them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Such as `2026-11-23 14:02:11`.
pub fn shown(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Reads `90s`, `30m`, `2h` or `3d` before now, `2026-11-23`, or `2026-11-23 14:02[:11]` with a space or a `T`; in milliseconds since 1970.
pub fn since(text: &str) -> Result<u64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_millis() as u64);
    before(now, text).or_else(|| point(text)).ok_or_else(|| {
        "use `30m`, `2h`, `3d`, `2026-11-23`, or `2026-11-23T14:02` (UTC)".to_owned()
    })
}

fn before(now: u64, text: &str) -> Option<u64> {
    let seconds = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let count = number(text.get(..text.len() - 1)?)?;
    let back = count.checked_mul(seconds * 1000)?;
    Some(now.saturating_sub(back))
}

fn point(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (day, clock) = match text.split_once(['T', ' ']) {
        Some((day, clock)) => (day, clock),
        None => (text, "00:00"),
    };
    let [year, month, day] = numbers(day, '-')?[..] else {
        return None;
    };
    let (hour, minute, second) = match numbers(clock, ':')?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    // A day that no month has becomes another one.
    let days = (year <= 9999).then(|| days(year, month, day))??;
    let is_date = date(days) == (year, month, day) && hour < 24 && minute < 60 && second < 61;
    is_date.then_some((days * 86_400 + hour * 3600 + minute * 60 + second) * 1000)
}

fn numbers(text: &str, separator: char) -> Option<Vec<u64>> {
    text.split(separator).map(number).collect()
}

/// Digits only: `parse` takes a sign too.
fn number(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Days from 1970 to a date, for years of four digits. A year is taken to begin in March, so that a leap day is its last.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_month = (1..=12).contains(&month) && day > 0;
    let (year, month) = match month {
        _ if !is_month => return None,
        1 | 2 => (year.checked_sub(1)?, month + 9),
        _ => (year, month - 3),
    };
    let before = 365 * year + year / 4 - year / 100 + year / 400;
    (before + DAYS_BEFORE.get(month as usize)? + day).checked_sub(EPOCH + 1)
}

/// The date of a day after 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH;
    let before = |year: u64| 365 * year + year / 4 - year / 100 + year / 400;
    // At most one too large, because the mean year is longer than 365.2 days.
    let mut year = days * 400 / 146_097 + 1;
    while before(year) > days {
        year -= 1;
    }
    let day = days - before(year);
    let month = DAYS_BEFORE.iter().rposition(|first| *first <= day);
    let month = month.unwrap_or_default();
    let day = day - DAYS_BEFORE.get(month).copied().unwrap_or_default() + 1;
    match month as u64 {
        month @ 0..=9 => (year, month + 3, day),
        month => (year + 1, month - 9, day),
    }
}

/// Days from the 1st of March of year 0 to 1970.
const EPOCH: u64 = 719_468;

/// Days of a year before each month, from March on.
const DAYS_BEFORE: [u64; 12] = [0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337];

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds as `date -u -d … +%s` prints them.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("1970-03-01", 5_097_600),
            ("1999-12-31", 946_598_400),
            ("2000-02-29", 951_782_400),
            ("2000-03-01", 951_868_800),
            ("2026-11-23", 1_795_392_000),
            ("2100-02-28", 4_107_456_000),
            ("2100-03-01", 4_107_542_400),
        ] {
            assert_eq!(point(text), Some(seconds * 1000), "{text}");
            assert_eq!(shown(seconds * 1000), format!("{text} 00:00:00"));
        }
        assert_eq!(shown(1_795_392_000_999 + 50_531_000), "2026-11-23 14:02:11");
        for text in ["2026-11-23T14:02:11", "2026-11-23 14:02:11Z"] {
            assert_eq!(point(text), Some(1_795_442_531_000), "{text}");
        }
    }

    #[test]
    fn every_day_has_one_date() {
        for day in 0..200_000 {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), Some(day));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "h",
            "-2h",
            "+2h",
            "2",
            "2 h",
            "2026",
            "2026-11",
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-01-00",
            "2026-01-01T",
            "2026-01-01T24:00",
            "2026-01-01T10",
            "10:00",
            "1969-12-31",
            "99999999999-01-01",
            "99999999999999999999h",
            "é",
            "2é",
        ] {
            assert!(since(text).is_err(), "{text}");
        }
        assert_eq!(before(10_000_000, "2h"), Some(2_800_000));
        assert_eq!(before(1000, "2h"), Some(0), "before 1970");
    }
}
