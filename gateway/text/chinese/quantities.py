"""Chinese money, measures, percentages, fractions, ranges, sums, and all numbers that are left."""

from __future__ import annotations

import re

from gateway.text.chinese.words import cardinal, counted, digits, han, money, number, ordinal
from gateway.text.rules import rule

_N = r"\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,9})?|\d{1,16}(?:\.\d{1,16})?"
_FREE, _END = r"(?<![\d.A-Za-z])", r"(?!\d|[.,]\d)"
_TO = r"\s?(?:-|–|—|~|～|〜|至|到)\s?"
_SCALE = r"(?:\s?(?P<scale>[百千]?[万萬亿億]|[百千](?!分)|[kKMB](?![A-Za-z])))?"
_SCALES = {"k": "千", "K": "千", "M": "百万", "B": "十亿"}
_CURRENCIES = {
    "HK$": "港元", "NT$": "新台币", "US$": "美元", "A$": "澳元", "AU$": "澳元", "C$": "加元", "CA$": "加元",
    "S$": "新加坡元", "NZ$": "新西兰元", "R$": "雷亚尔", "CN¥": "元", "RMB": "元", "CNY": "元", "USD": "美元",
    "EUR": "欧元", "GBP": "英镑", "JPY": "日元", "HKD": "港元", "TWD": "新台币", "NTD": "新台币", "KRW": "韩元",
    "AUD": "澳元", "CAD": "加元", "SGD": "新加坡元", "CHF": "瑞士法郎", "RUB": "卢布", "THB": "泰铢", "INR": "卢比",
    "$": "美元", "¥": "元", "￥": "元", "€": "欧元", "£": "英镑", "₩": "韩元", "₹": "卢比", "₽": "卢布", "฿": "泰铢",
    "₫": "越南盾",
}  # fmt: skip
_CURRENCY = "|".join(sorted(map(re.escape, _CURRENCIES), key=len, reverse=True))
_NAMED = han("美元 欧元 英镑 日元 韩元 港元 港币 人民币 元 块 圆")
_UNITS = {
    "mmHg": "毫米汞柱", "mmol": "毫摩尔", "mol": "摩尔", "mAh": "毫安时", "Ah": "安时", "kWh": "千瓦时", "Wh": "瓦时",
    "MWh": "兆瓦时", "hPa": "百帕", "kPa": "千帕", "MPa": "兆帕", "Pa": "帕", "kg": "千克", "KG": "千克", "Kg": "千克",
    "g": "克", "mg": "毫克", "μg": "微克", "µg": "微克", "t": "吨", "km": "公里", "KM": "公里", "m": "米", "dm": "分米",
    "cm": "厘米", "CM": "厘米", "mm": "毫米", "μm": "微米", "nm": "纳米", "L": "升", "l": "升", "mL": "毫升",
    "ml": "毫升", "ML": "毫升", "dL": "分升", "℃": "摄氏度", "°C": "摄氏度", "℉": "华氏度", "°F": "华氏度", "°": "度",
    "V": "伏", "kV": "千伏", "KV": "千伏", "mV": "毫伏", "mA": "毫安", "A": "安", "W": "瓦", "kW": "千瓦", "KW": "千瓦",
    "MW": "兆瓦", "GW": "吉瓦", "Hz": "赫兹", "kHz": "千赫", "MHz": "兆赫", "GHz": "吉赫", "dB": "分贝", "Ω": "欧姆",
    "kJ": "千焦", "cal": "卡", "kcal": "千卡", "s": "秒", "ms": "毫秒", "μs": "微秒", "ns": "纳秒", "min": "分钟",
    "h": "小时", "hr": "小时", "Mbps": "兆比特每秒", "Gbps": "吉比特每秒", "kbps": "千比特每秒", "fps": "帧每秒",
    "rpm": "转每分钟", "ha": "公顷", "ft": "英尺", "inch": "英寸", "lb": "磅", "oz": "盎司", "mph": "英里每小时",
    "lx": "勒克斯", "lm": "流明", "eV": "电子伏", "rad": "弧度",
}  # fmt: skip
_POWERS = {"²": "平方", "2": "平方", "³": "立方", "3": "立方", "^2": "平方", "^3": "立方"}
_LENGTHS = "km|cm|mm|dm|m|nm|μm"
_UNIT_NAME = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_ONE_UNIT = rf"(?:(?:{_LENGTHS})(?:[²³]|\^?[23](?!\d))|{_UNIT_NAME})"
_UNIT = rf"{_ONE_UNIT}(?:/(?:{_ONE_UNIT}|[年月日天次人个秒分时]))?(?![A-Za-z0-9²³])"
_NAMES = frozenset("sgt")
"""Units that are the end of a name where Latin letters stand before the number: iPhone 5s."""
_CLASSIFIERS = han(
    "个 名 位 人 只 条 张 本 件 辆 台 部 架 艘 座 间 家 所 道 篇 首 幅 场 回 遍 趟 步 杯 瓶 碗 盘 盒 箱 "
    "包 袋 桶 罐 串 束 朵 棵 株 颗 粒 块 片 滴 根 支 枝 把 顶 双 对 副 套 组 队 群 批 份 种 样 类 项 款 "
    "门 句 字 段 页 头 匹 口 户 天 周 星期 堂 小时 钟头 分钟 秒 岁 米 厘米 毫米 公里 千米 公斤 千克 斤 克 吨 "
    "升 毫升 平方 立方 公顷 亩 倍 成 元 毛 角 分 点 度 万 亿 千 百 桌 晚 夜 室 厅 卫 房 居室 边 侧 国 省 市 "
    "县 校 轮 美元 欧元 英镑 港元 日元 笔 枚 节 餐 顿 针 阵 行 处 英 海里 光年 寸 尺 丈 磅 瓦 摄氏度 刻钟 季度 "
    "次 代人"
)
_NOT_COUNTED = r"分之|点\d(?!\d?分)|点几|次[元方]|次函数|次曲线|行[代程]|室外|国[道语]"
_COUNTED = rf"(?=\s?(?:(?!{_NOT_COUNTED})(?:{_CLASSIFIERS})|年(?![级級底初末春夏秋冬])))"
_UNIT_CHARACTERS = (
    "年月日号號点點分时時周元块塊角毛米克斤吨噸升度岁歲人个個天名次页頁章节節级級楼樓层層位万萬亿億千百件台部条條寸倍"
)
_AMOUNT_BEFORE = re.compile(r"(?:[达達共约約近超过過至有逾计計]|人口)\s?$")
_AMOUNT_BEHIND = re.compile(rf"\s?(?:[{_UNIT_CHARACTERS}]|{_CLASSIFIERS})")
_LONG_UNITS = "厘米|公里|小时|公斤|美元|分钟|毫米|毫升|英寸|平米"
_SHOWN_NEGATIVE = "是为為约約达達到至得在低高温溫度从從和与與比于過过减減加乘除算有值了下跌降涨漲升仅僅零"
_TELEPHONE, _MOST_DIGITS = 8, 12
"""A number of 8 digits that counts nothing is a telephone's; one of more than 12 is no amount either."""
_VULGAR = dict(
    zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", "1/2 1/3 2/3 1/4 3/4 1/5 2/5 3/5 4/5 1/6 5/6 1/8 3/8 5/8 7/8".split(), strict=True)
)
_OPERATORS = {"+": "加", "=": "等于", "==": "等于", "×": "乘", "*": "乘", "÷": "除以", "/": "除以", "≠": "不等于"}
_OPERATORS |= {"≈": "约等于", "≥": "大于等于", "≤": "小于等于", ">=": "大于等于", "<=": "小于等于", "!=": "不等于"}
_OPERATORS |= {">": "大于", "<": "小于", "＞": "大于", "＜": "小于", "−": "减", "-": "减", "±": "正负"}
_BEFORE, _BEHIND = r"(?<=[\dA-Za-z)）方²³π%])\s?", r"\s?(?=[\dA-Za-z(（√π])"


def _operator(match: re.Match[str]) -> str:
    return _OPERATORS[match["sign"]]


def _power(match: re.Match[str]) -> str:
    """x² is x平方, 2³ is 二的三次方, 10^-3 is 十的负三次方."""
    exponent = {"²": "2", "³": "3"}.get(match["exponent"], match["exponent"].lstrip("^"))
    base = match["base"]
    if not base.isdecimal():
        return base + ("平方" if exponent == "2" else f"的{_exponent(exponent)}次方")
    return f"{number(base)}的{'平方' if exponent == '2' else _exponent(exponent) + '次方'}"


def _exponent(written: str) -> str:
    return number(written) if written.lstrip("-−").isdecimal() else written


def _exponential(match: re.Match[str]) -> str:
    return f"{number(match['amount'])}乘十的{number(match['exponent'].lstrip('+'))}次方"


def _percent(match: re.Match[str]) -> str:
    part = {"%": "百分之", "‰": "千分之"}[match["sign"]]
    first = part + number(match["amount"])
    return f"{first}到{part}{number(match['last'])}" if match["last"] else first


def _fraction(match: re.Match[str]) -> str:
    whole = f"{number(match['whole'])}又" if match.groupdict().get("whole") else ""
    return f"{whole}{number(match['bottom'])}分之{number(match['top'])}"


def _price(match: re.Match[str]) -> str:
    currency, scale = _CURRENCIES[match["sign"]], match["scale"] or ""
    amounts = [money(each) for each in (match["amount"], match["last"]) if each]
    words = "到".join(amounts) + _SCALES.get(scale, scale)
    minus = "负" if match.groupdict().get("minus") else ""
    return f"{minus}新台币{words}元" if currency == "新台币" else minus + words + currency


def _measure(match: re.Match[str]) -> str:
    unit = match["unit"]
    if unit in _NAMES and re.search("[A-Za-z] ?$", match.string[: match.start()][-2:]):
        return match[0]
    top, _, bottom = match["amount"].partition("/")
    amount = f"{number(bottom)}分之{number(top)}" if bottom else counted(top)
    return (f"{counted(match['first'])}到" if match["first"] else "") + amount + _unit(unit)


def _unit(written: str) -> str:
    first, _, second = written.partition("/")
    name = _one_unit(first)
    return f"{name}每{_one_unit(second)}" if second else name


def _one_unit(written: str) -> str:
    if written in _UNITS:
        return _UNITS[written]
    length = re.match(_LENGTHS, written)
    return written if length is None else _POWERS[written[length.end() :]] + _UNITS[length[0]]


def _first(match: re.Match[str]) -> str:
    """Return the first number of a range; 2 of what is counted is 两. What falls, or begins with 0, is a score."""
    first, last, behind = match["first"], match["last"], match.string[match.end("last") :]
    is_short = first.isdecimal() and last.isdecimal() and max(len(first), len(last)) <= len("10")
    if is_short and not match["word"] and (int(first) > int(last) or first == "0") and not _AMOUNT_BEHIND.match(behind):
        return f"{number(first)}比"
    return "两到" if first == "2" and re.match(_COUNTED, behind) else f"{number(first)}到"


def _number(match: re.Match[str]) -> str:
    """Return the words of any number; a long one of no amount is read digit by digit."""
    written = match[0].replace(",", "")
    is_long = len(written) == _TELEPHONE or len(written) > _MOST_DIGITS
    is_code = is_long and written.isdecimal() and written == match[0] and not written.endswith("000")
    if not is_code or _AMOUNT_BEFORE.search(match.string, max(0, match.start() - 3), match.start()):
        return number(written)
    return number(written) if _AMOUNT_BEHIND.match(match.string, match.end()) else digits(written)


SIGNS = (
    rule(r"(?<=\d)．(?=\d)", lambda _: "."),
    rule(r"(?<=\d)#(?=[楼樓栋棟座机線线汽柴])", lambda _: "号"),
    rule(r"(?<=\d)[wW](?=\+|[粉人]|用户|阅读|播放)", lambda _: "万"),
    rule(rf"(?P<whole>\d{{1,6}})(?=[{''.join(_VULGAR)}])", lambda m: f"{m['whole']}又"),
    rule(f"[{''.join(_VULGAR)}]", lambda m: _VULGAR[m[0]]),
    rule(r"(?:№|(?<![A-Za-z])[Nn][Oo]\.) ?(?P<amount>\d{1,6})", lambda m: f"{cardinal(m['amount'])}号"),
    rule(r"(?<!\d)24/7(?!\d)", lambda _: "七天二十四小时"),
    rule(
        rf"第 ?(?P<first>\d{{1,16}})(?:{_TO}(?P<last>\d{{1,16}}))?(?![.,]\d)",
        lambda m: f"第{ordinal(m['first'])}" + (f"到{ordinal(m['last'])}" if m["last"] else ""),
    ),
)
SUMS = (
    rule(rf"(?<![\dA-Za-z.])(?P<amount>{_N})[eE](?P<exponent>[+-]?\d{{1,3}})(?![\dA-Za-z])", _exponential),
    rule(r"√\s?(?=[\dA-Za-z(（])", lambda _: "根号"),
    rule(
        r"(?P<base>(?<![A-Za-z\d.])\d{1,9}|(?<![A-Za-z])[a-ln-zA-Z]|(?<![A-Za-z\d/])m|[)）])"
        r"(?P<exponent>[²³]|\^-?(?:\d{1,4}|[A-Za-z]))",
        _power,
    ),
    rule(rf"{_BEFORE}(?P<sign>[<>!=]=|[+=×*÷≠≈≥≤<>＜＞−±]){_BEHIND}", _operator),
    rule(
        r"(?<=[\w)）])\s?(?P<sign>[=≈≥≤≠×])\s?(?=[\w(（√-])|(?<![-=<>A-Za-z\d])(?P<only>[≈≥≤±<>＜＞])\s?(?=\d)",
        lambda m: _OPERATORS[m["sign"] or m["only"]],
    ),
    rule(r"(?<=[\w)）])\s?(?P<sign>[<>＜＞]=?)\s?(?=\d)", _operator),
    rule(rf"{_BEFORE}(?P<sign>[-/]){_BEHIND}(?=[^，。\s=等]{{1,12}}(?:=|等于))", _operator),
)
MINUS = (
    rule(rf"(?<=\d[{_UNIT_CHARACTERS}])\s?[-–—~～]\s?(?=[-−]?\d)", lambda _: "到"),
    rule(rf"(?:(?<=\d(?:{_LONG_UNITS}))|(?<=\d[℃%‰]))\s?[-–—~～]\s?(?=[-−]?\d)", lambda _: "到"),
    rule(rf"(?<![\w)）\]%‰℃°.])[-−](?=\d|[百千]分之)|(?<=[{_SHOWN_NEGATIVE}])[-−](?=\d)", lambda _: "负"),
    rule(rf"(?<=[\u4e00-\u9fff])[-−](?=(?:{_N})\s?(?:℃|°|度|%|元|万|亿))", lambda _: "负"),
    rule(r"(?<=\d)\s?[-–—~～]\s?(?=负\d)|(?<=\d/\d)\s?[-–—~～]\s?(?=\d{1,2}/\d)", lambda _: "到"),
    rule(r"(?<=[\u4e00-\u9fff])-(?=\d)", lambda _: " "),
    rule(r"(?<![A-Za-z\d)）\]%℃°.+])\+(?=\d)", lambda _: "正"),
    rule(r"(?<=[\d万萬亿億千百])\+(?![\w+])", lambda _: "加"),
)
MONEY = (
    rule(
        rf"{_FREE}(?P<minus>[-−])?(?P<sign>{_CURRENCY})\s?(?P<amount>{_N})(?:{_TO}(?:(?P=sign))?(?P<last>{_N}))?"
        rf"{_SCALE}{_END}(?:{_NAMED})?",
        _price,
    ),
    rule(rf"{_FREE}(?P<amount>{_N})(?:{_TO}(?P<last>{_N}))?{_SCALE}\s?(?P<sign>{_CURRENCY})(?![A-Za-z\d])", _price),
    rule(
        rf"{_FREE}(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,16}})\.\d{{0,8}}0(?=\s?(?:{_NAMED}))",
        lambda m: money(m[0].replace(",", "")),
    ),
)
MEASURES = (
    rule(
        r"(?P<top>\d{2,3})/(?P<bottom>\d{2,3})(?=\s?(?:mmHg|毫米汞柱))", lambda m: f"{number(m['top'])}比{m['bottom']}"
    ),
    rule(rf"{_FREE}(?P<amount>{_N})\s?(?:[%‰]?{_TO}(?P<last>{_N})\s?)?(?P<sign>[%‰])", _percent),
    rule(
        rf"(?<![\d.A-Za-z/])(?:(?P<first>{_N})\s?(?:{_ONE_UNIT})?{_TO})?(?P<amount>\d{{1,3}}/\d{{1,3}}|{_N})"
        rf"\s?(?P<unit>{_UNIT})(?<!\dA)(?!景|级)",
        _measure,
    ),
    rule(rf"(?<=[元角块分次个人度千万])/(?P<unit>{_UNIT})", lambda m: f"每{_unit(m['unit'])}"),
    rule(
        r"(?<=[元角块分次个人度千万吨斤升米克])/(?=[年月日天周次人个斤吨米升克平分秒小件箱台套度公千])", lambda _: "每"
    ),
)
NUMBERS = (
    rule(
        r"(?<![\d.A-Za-z/])(?:(?P<whole>\d{1,6})[又 ])?(?P<top>\d{1,6}(?:\.\d{1,4})?)\s?/\s?(?P<bottom>\d{1,6})"
        r"(?![\d/])",
        _fraction,
    ),
    rule(rf"{_FREE}(?P<first>{_N})\s?(?:[-–—~～〜]|(?P<word>[至到]))\s?(?=(?P<last>{_N})(?![-/.]\d))", _first),
    rule(rf"(?<![\d.])2{_COUNTED}", lambda _: "两"),
    rule(r"(?<![\d.A-Za-z])\.(?=\d)", lambda _: "0."),
    rule(_N, _number),
)
