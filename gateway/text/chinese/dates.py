"""Dates, years and times of Chinese, and scores, which are written as times are."""

from __future__ import annotations

import re

from gateway.text.chinese.words import called, cardinal, counted, digits, han, number
from gateway.text.rules import rule

_FREE, _END = r"(?<![\d./A-Za-z-])(?<!\d[:：])", r"(?![\d:：/]|[.-]\d)"
_YEAR, _MONTH, _DAY = r"(?P<year>[12]\d{3})", r"(?P<month>1[0-2]|0?[1-9])", r"(?P<day>3[01]|[12]\d|0?[1-9])"
_MONTH_2, _DAY_2 = r"(?P<month>1[0-2]|0[1-9])", r"(?P<day>3[01]|[12]\d|0[1-9])"
_RANGE = r"\s?[-–—~～至到]\s?"
_OF_A_YEAR = han("财年 届 款 赛季 学年 年度 奥运 世界杯 欧洲杯 亚运 春晚 春节 高考 世博")
_LASTING_BEFORE = r"(?<![了近过约满达长共第有期去来每前逾超整这])"
_LASTING_BEHIND = r"(?![后後前来來间間内內里历歷多代级級]|以|之|左右|寿命|经验|使用|产权|租期|有期|徒刑)"
_AFTER_2_DIGITS = r"(?=\d{1,2}月|" + han("出生 毕业 入学 上市 那年 底 初 款 版 春 夏 秋 冬") + ")"
_SCORED = han(
    "比分 战胜 击败 负于 险胜 大胜 完胜 领先 落后 不敌 战平 扳平 逆转 总分 输给 赢了 横扫 获胜 取胜 胜出 "
    "比例 比率 配比 赔率"
)
_PLAYED = han("爆冷 决赛 小组赛 主场 客场") + "|[队隊国國]"
"""Behind these, a hyphen between numbers is that of a score; a colon may be that of a time."""
_HALVES = {"a": "上午", "p": "下午"}
_HOURS_OF_A_HALF = _MONTHS = 12
_DAYS = 31
_LASTING = han("用时 耗时 历时 时长 片长 成绩")
_TIME = r"(?P<hour>2[0-4]|[01]?\d)[:：](?P<minute>[0-5]\d)(?:[:：](?P<second>[0-5]\d))?"
_HALF = r"(?:\s?(?P<half>[aApP])\.?[mM]\b\.?)"
_LITTLE = r"[^\d，。,;；]"
_COUNTED_BEHIND = r"(?!\s?[年月日号號元米个個人次天章页頁])"


def _date(match: re.Match[str]) -> str:
    found = match.groupdict()
    day = f"{cardinal(found['day'].lstrip('0'))}{found.get('named') or '日'}" if found.get("day") else ""
    year = f"{digits(found['year'])}年" if found.get("year") else ""
    return f"{year}{cardinal(found['month'].lstrip('0'))}月{day}"


def _american_date(match: re.Match[str]) -> str:
    """Return 12/25/2024 and 25/12/2024 in words; what is no date stays."""
    month, day = int(match["first"]), int(match["last"])
    if month > _MONTHS:
        month, day = day, month
    if not (1 <= month <= _MONTHS and 1 <= day <= _DAYS):
        return match[0]
    return f"{digits(match['year'])}年{cardinal(str(month))}月{cardinal(str(day))}日"


def _festival(match: re.Match[str]) -> str:
    """5.1假期 is 五一假期, 10.1黄金周 is 十一黄金周."""
    return "十一" if match[0] == "10.1" else digits(match[0].replace(".", ""))


def _year(match: re.Match[str]) -> str:
    return digits(match[0])


def _years(match: re.Match[str]) -> str:
    return f"{digits(match['first'])}到{digits(match['last'])}"


def _clock(match: re.Match[str]) -> str:
    half = _HALVES[match["half"].lower()] if match["half"] and int(match["hour"]) <= _HOURS_OF_A_HALF else ""
    hour, minute, second = match["hour"].lstrip("0") or "0", match["minute"], match["second"]
    if second is not None:
        return f"{half}{counted(hour)}点{_sixtieth(minute)}分{_sixtieth(second)}秒"
    return f"{half}{counted(hour)}点" + ("" if minute == "00" else f"{_sixtieth(minute)}分")


def _sixtieth(written: str) -> str:
    """Return 零五 for 05, 零 for 00, 五十 for 50."""
    return "零" if written == "00" else digits(written) if written[0] == "0" else cardinal(written)


def _duration(match: re.Match[str]) -> str:
    hour, minute, second = match["hour"], match["minute"], match["second"]
    if second is None:
        return f"{match['before']}{counted(hour)}分{_sixtieth(minute)}秒"
    return f"{match['before']}{counted(hour.lstrip('0') or '0')}小时{_sixtieth(minute)}分{_sixtieth(second)}秒"


def _score(match: re.Match[str]) -> str:
    return f"{match.groupdict().get('before') or ''}{number(match['first'])}比{number(match['last'])}"


DATES = (
    rule(rf"{_FREE}{_YEAR}(?P<sign>[-/.·]){_MONTH}(?P=sign){_DAY}(?P<named>[日号號])?{_END}", _date),
    rule(
        rf"{_FREE}(?P<first>\d{{1,2}})(?P<sign>[-/.])(?P<last>\d{{1,2}})(?P=sign)(?P<year>(?:19|20)\d\d){_END}",
        _american_date,
    ),
    rule(rf"{_FREE}{_YEAR}[-/]{_MONTH_2}{_END}", _date),
    rule(rf"{_FREE}{_YEAR}\.(?P<month>1[0-2]|0[1-9]){_END}(?![元万亿萬億%℃°A-Za-z个個])", _date),
    rule(rf"{_FREE}{_MONTH_2}[-/.]{_YEAR}{_END}", _date),
    rule(rf"{_FREE}(?P<month>0[1-9])(?P<sign>[-/.]){_DAY_2}{_END}", _date),
    rule(
        rf"{_FREE}(?P<year>\d{{1,4}}) ?(?i:(?P<era>b)\.?c|(?P<our>a)\.?d)\b\.?",
        lambda m: f"公元{'前' if m['era'] else ''}{digits(m['year'])}年",
    ),
    rule(r"(?<=公元)前?\d{1,4}(?=年)|(?<=[纪紀西]元)前?\d{1,4}(?=年)", lambda m: digits(m[0])),
    rule(rf"{_FREE}\d{{1,2}}\.\d{{1,2}}(?=假期|黄金周|小长假|长假|大促|国庆|劳动节|儿童节|妇女节|情人节)", _festival),
    rule(
        rf"{_FREE}(?P<minute>\d{{1,3}})[′'](?P<second>\d{{1,2}})[″\"]",
        lambda m: f"{counted(m['minute'])}分{counted(m['second'])}秒",
    ),
    rule(rf"{_FREE}\d{{1,2}}·\d{{1,2}}(?!\d)", lambda m: called(m[0].replace("·", ""))),
    rule(
        rf"{_FREE}(?P<first>(?:19|20)\d\d){_RANGE}(?P<last>(?:19|20)\d\d){_END}(?!\s?[元人米个個名件万亿点分秒克吨公])",
        _years,
    ),
    rule(rf"{_FREE}(?P<first>[12]\d{{3}})年?(?:{_RANGE}|/)(?P<last>[12]\d{{3}})(?=年|{_OF_A_YEAR})", _years),
    rule(rf"{_FREE}(?P<first>[12]\d{{3}})[-/](?P<last>\d\d)(?=年|{_OF_A_YEAR})", _years),
    rule(rf"{_FREE}[12]\d{{3}}(?=\s?年(?!历史|歷史|文明)|{_OF_A_YEAR}|[Qq][1-4])", _year),
    rule(r"(?<=《)[12]\d{3}(?!\d)", _year),
    rule(rf"{_FREE}0\d(?=年)|{_FREE}\d\d(?=年{_AFTER_2_DIGITS})", _year),
    rule(rf"{_FREE}{_LASTING_BEFORE}(?:49|[5-9]\d)(?=年{_LASTING_BEHIND})", _year),
    rule(rf"{_FREE}(?:[5-9][05]|00|05|10)(?=[后後](?!\w*[天年月日个時时分秒]))", _year),
    rule(rf"{_FREE}0[1-9](?=[月日号號])", lambda m: cardinal(m[0][1:])),
    rule(r"(?<=[年月日号號点點分时時周期])\s?[-–—~～]\s?(?=\d)", lambda _: "到"),
)
TIMES = (
    rule(rf"(?P<before>(?:{_LASTING})[为為是了約约]?\s?){_TIME}{_END}", _duration),
    rule(
        rf"(?P<before>(?:{_SCORED}){_LITTLE}{{0,10}})(?P<first>\d{{1,3}}) ?[:：-] ?(?P<last>\d{{1,3}})"
        rf"{_END}{_COUNTED_BEHIND}",
        _score,
    ),
    rule(
        rf"{_FREE}(?P<first>\d{{1,3}}) ?[:：-] ?(?P<last>\d{{1,3}}){_END}(?={_LITTLE}{{0,4}}(?:{_SCORED}))",
        _score,
    ),
    rule(
        rf"(?P<before>(?:{_PLAYED}){_LITTLE}{{0,4}})(?P<first>\d{{1,2}}) ?- ?(?P<last>\d{{1,2}})"
        rf"{_END}{_COUNTED_BEHIND}",
        _score,
    ),
    rule(rf"{_FREE}(?P<first>\d{{1,2}}) ?- ?(?P<last>(?P=first)){_END}{_COUNTED_BEHIND}", _score),
    rule(rf"{_FREE}{_TIME}{_HALF}?{_RANGE}(?=\d{{1,2}}[:：]\d\d)", lambda m: f"{_clock(m)}到"),
    rule(rf"(?:(?<=到)|{_FREE}){_TIME}{_HALF}?{_END}", _clock),
    rule(
        rf"{_FREE}(?P<first>\d{{1,6}}(?:\.\d{{1,3}})?) ?[:：] ?(?P<last>\d{{1,6}}(?:\.\d{{1,3}})?)(?![\d:：/-])", _score
    ),
    rule(
        rf"{_FREE}(?P<hour>1[0-2]|0?[1-9]) ?{_HALF}",
        lambda m: f"{_HALVES[m['half'].lower()]}{counted(m['hour'].lstrip('0'))}点",
    ),
)
